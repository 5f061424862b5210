"""Makes nano-omni from nothing, part by part: `python -m training.nano_omni.train PART --out FOLDER`.

The parts are those of PARTS, in this order, or `all`; each takes from FOLDER what the ones before it have left.
`thinker` may run beside those after it, and `strings` beside `codec`. On one GPU the longest takes eleven minutes.
"""

import argparse
import hashlib
import itertools
import logging
import os
import pickle
import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.nano_image import drawings as pictures
from training.nano_image.captions import Scene, draw_scene
from training.nano_image.scenes import Painter
from training.nano_omni import codec, dialogues, layout, speech, talker, thinker
from training.nano_omni.perception import GRIDS, HEARD_RATE, framed, in_shape
from training.pack import pack

log = logging.getLogger(__name__)
_SECONDS = {"thinker": 400.0, "codec": 270.0, "talker": 660.0}
_SHORT = 8  # letters: what is so short is said in every voice
_HELD = 256  # sentences that are said to be heard for the scores, or said freely
_HEARD_S = 4.5  # of a sound, at most: few are longer
_LONGEST = {"none": 270, "image": 250, "audio": 140}  # of chats: with what they show all are of as many tokens
_MEDIA_ROWS = (0, 16, 40)  # of what the user shows or says, in the talker's prompt


def data(options: argparse.Namespace) -> None:
    """What is said: answers to be spoken and sentences to be heard, by the teacher; the tokenizer; a fresh model, whose
    embedding table stays as it is, so that thinker and talker can be trained at the same time."""
    chance = random.Random(options.seed)
    talks = [dialogues.draw_dialogue(chance, unseen=False) for _ in range(3 * options.sentences)]
    heard = [dialogues.draw_heard(chance, unseen=False) for _ in range(options.sentences // 2)]
    unheard = [dialogues.draw_heard(chance, unseen=True) for _ in range(min(_HELD, options.sentences))]
    seen, _ = _looks(chance, _drawings(options), options.sentences // 4)
    talks += seen  # whose answers are spoken as well
    tokenizer = layout.tokenizer([turn for one in talks for turn in one.turns])
    torch.manual_seed(options.seed)
    table = layout.model(tokenizer).thinker.get_input_embeddings().weight.detach()
    _keep(options, "fresh", {"tokenizer": tokenizer, "table": table})
    both = dict.fromkeys(
        one.answer for one in talks if one.topic not in ("saying", "seeing") or len(one.answer) < _SHORT
    )
    once = dict.fromkeys([one.answer for one in talks] + [one.heard for one in (*heard, *unheard)])
    voices = list(layout.VOICES)
    jobs = [(text, voice) for text in both for voice in voices]
    jobs += [(text, voice) for text, voice in zip(once, itertools.cycle(voices)) if text not in both]
    log.info("%d different sentences, %d of them in all voices", len(once), len(both))
    said = speech.say(jobs, options.workers)
    log.info("%.2f hours of speech", sum(len(one.samples) for one in said) / speech.RATE / 3600)
    _keep(options, "data", {"talks": talks, "heard": heard, "unheard": unheard, "said": said})


def strings(options: argparse.Namespace) -> None:
    """More strings of words to be said. They have a chance of their own: how many there are changes no tokenizer."""
    chance = random.Random(options.seed + 30)
    talks = [dialogues.draw_string(chance) for _ in range(options.strings)]
    texts = dict.fromkeys(one.answer for one in talks)
    said = speech.say(list(zip(texts, itertools.cycle(layout.VOICES))), options.workers)
    log.info("%.2f hours of speech", sum(len(one.samples) for one in said) / speech.RATE / 3600)
    _keep(options, "strings", {"talks": talks, "said": said})


def _drawings(options: argparse.Namespace) -> pictures.Drawings:
    return pictures.load(options.drawings) if options.drawings else pictures.draw()


def _looks(
    chance: random.Random, drawn: pictures.Drawings, count: int, *, unseen: bool = False
) -> tuple[list[dialogues.Dialogue], list[Scene]]:
    scenes = [draw_scene(chance, drawn, pairs=0.4, unseen=unseen) for _ in range(count)]
    return [dialogues.draw_seen(chance, scene, drawn, list(pictures.BACKGROUNDS)) for scene in scenes], scenes


def train_thinker(options: argparse.Namespace) -> None:
    """Thinker and towers."""
    kept, (tokenizer, model) = _kept(options, "data"), _fresh(options)
    if options.resume is not None:
        _resume(model.thinker, options.resume, _fingerprint(options))
    chance, drawn = random.Random(options.seed + 10), _drawings(options)
    painter, generator = Painter(drawn, options.device), torch.Generator().manual_seed(options.seed)
    writer, many = thinker.Writer(tokenizer), 10 * options.sentences

    def seeing(count: int, grid: tuple[int, int] | None = None, **how: Any) -> tuple[list[dialogues.Dialogue], Any]:
        asked, pixels = [], []
        for start in range(0, count, 512):
            some, scenes = _looks(chance, drawn, min(512, count - start), unseen=how.get("unseen", False))
            asked += _varied(chance, some, drawn, **how)
            painted = painter.paint(scenes, generator)
            if grid is not None:
                own = torch.rand(len(scenes), 1, 1, 1, device=painted.device) < 0.5
                painted = torch.where(own, in_shape(painter, scenes, generator, grid), framed(painted, grid))
            pixels.append((painted * 127.5 + 127.5).round().byte())
        return asked, torch.cat(pixels)

    def lines(asked: list[dialogues.Dialogue], pixels: Any = None, sounds: Sequence[Any] = ()) -> thinker.Lines:
        return thinker.lines_of(writer, asked, options.device, pixels=pixels, sounds=sounds)

    talks = [dialogues.draw_dialogue(chance, unseen=False) for _ in range(many)]
    spoken = [dialogues.written(chance, one.text) for one in kept["said"]]
    answers = [one for one in spoken if one is not None and not dialogues.held_out(one)]
    heard, sounds = _sounds(kept, [*kept["heard"], *answers])
    listening = _varied(chance, heard, drawn, chats=0) + _varied(chance, heard, drawn)
    parts: dict[dialogues.Medium, thinker.Lines] = {
        "none": lines(_varied(chance, talks, drawn)),
        "image": lines(*seeing(many // 2)),
        "audio": lines(listening, sounds=[*sounds, *sounds]),
    }
    others = [lines(*seeing(many // 60, grid)) for grid in GRIDS]
    log.info("%d dialogues in text, %d of pictures, %d of sounds", len(talks), many // 2, len(heard))

    keep, again = _keeper(options, "thinker", model.thinker), options.resume is not None
    thinker.train(model.thinker, parts, framed=others, again=again, keep=keep, **_common(options, "thinker"))
    keep()
    held = min(4 * _HELD, options.sentences)
    told = [dialogues.draw_dialogue(chance, unseen=True) for _ in range(held)]
    unheard, unheard_sounds = _sounds(kept, kept["unheard"])
    plain: dict[str, Any] = {"chats": 0, "loose": 0, "unseen": True}
    asked: dict[str, tuple[Any, ...]] = {}
    for kind, how in (("", plain), (" in chats", plain | {"chats": 1}), (" loosely", plain | {"loose": 1})):
        asked["text" + kind] = (_varied(chance, told, drawn, **how),)
        asked["pictures" + kind] = seeing(held, **how)
        asked["sounds" + kind] = (_varied(chance, unheard, drawn, **how), None, unheard_sounds)
    asked |= {f"pictures of {grid}": seeing(held // 8, grid, **plain) for grid in GRIDS}
    for name, (dialogs, *media) in asked.items():
        found = [writer.decode(ids) for ids in thinker.answered(model.thinker, lines(dialogs, *media), writer.end)]
        for line in thinker.scores(dialogs, found):
            log.info("held out, %s: %s", name, line)


def _resume(module: Any, path: Path, made_for: str) -> None:
    """The weights that an earlier run has left in `path`. Raises ValueError for another tokenizer or table."""
    with path.open("rb") as file:
        found = pickle.load(file)
    if found["fresh"] != made_for:
        raise ValueError(f"{path} was trained with another tokenizer or table than fresh.pickle has: give its --seed")
    module.load_state_dict(found["weights"])


def _varied(
    chance: random.Random,
    asked: list[dialogues.Dialogue],
    drawn: pictures.Drawings,
    *,
    chats: float = 0.5,
    loose: float = 0.25,
    unseen: bool = False,
) -> list[dialogues.Dialogue]:
    """Each as it is, or (a share `chats`) among other turns, and (a share `loose`) as people type."""
    found = []
    for one in asked:
        if chance.random() < chats:
            last, first = one, None
            if one.medium != "none" and chance.random() < 0.6:
                first, last = one, dialogues.draw_dialogue(chance, unseen=unseen)
                if one.scene is not None and chance.random() < 0.5:
                    last = dialogues.draw_seen(chance, one.scene, drawn, list(pictures.BACKGROUNDS))
            chat = dialogues.draw_chat(chance, last, _LONGEST[one.medium], first=first)
            one = chat if dialogues.length(chat.turns) <= _LONGEST[one.medium] else one
        found.append(dialogues.loosely(chance, one) if chance.random() < loose else one)
    return found


def _sounds(kept: dict[str, Any], asked: list[dialogues.Dialogue]) -> tuple[list[dialogues.Dialogue], list[Any]]:
    """Those that have a sound of a length that is heard, and their sounds, int16 at the rate of hearing."""
    import soxr

    voices = {_plain(one.text): one.samples for one in kept["said"]}
    found = [one for one in asked if len(voices[_plain(one.heard)]) < _HEARD_S * speech.RATE]
    keys = sorted({_plain(one.heard) for one in found})
    with ThreadPoolExecutor() as pool:
        ways = dict(
            zip(keys, pool.map(lambda key: soxr.resample(voices[key], speech.RATE, HEARD_RATE), keys), strict=True)
        )
    return found, [torch.from_numpy(ways[_plain(one.heard)]) for one in found]


def _plain(text: str) -> str:
    """What is the same to the ear: no capital and no stop."""
    return text.rstrip(".").lower()


def train_codec(options: argparse.Namespace) -> None:
    """Encoder, codebooks and Code2Wav."""
    said, (_, model) = _kept(options, "data")["said"], _fresh(options)
    samples = torch.from_numpy(np.concatenate([one.samples for one in said])).to(options.device)
    trained = codec.train(model.code2wav, samples, record=not options.plain, **_common(options, "codec"))
    vectors, encoder = trained.codebooks.vectors.half().cpu(), trained.encoder.half().cpu().state_dict()
    _keep(options, "codec", {"weights": trained.code2wav.state_dict(), "encoder": encoder, "vectors": vectors})


def encode(options: argparse.Namespace) -> None:
    """Every sentence as codes, in all phases, with what is said before it: all that the talker needs beside `fresh`."""
    parts, found = [_kept(options, name) for name in ("data", "strings")], _kept(options, "codec")
    trained = codec.Codec(_fresh(options)[1].code2wav).to(options.device).eval()
    trained.encoder.load_state_dict(found["encoder"])
    trained.codebooks.vectors.copy_(found["vectors"])
    torch.backends.cudnn.benchmark = False  # every length comes a few times only
    codes: list[Any] = []
    for part in parts:
        samples = torch.from_numpy(np.concatenate([one.samples for one in part["said"]])).to(options.device)
        codes += trained.coded(samples, [one.frames for one in part["said"]])
    asked: dict[str, list[tuple[str, ...]]] = {}
    for talk in (talk for part in parts for talk in part["talks"]):
        asked.setdefault(talk.answer, []).append(talk.turns[:-1:2])
    whole = torch.cat(codes, dim=2)
    used = [len(whole[0, group].unique()) for group in range(layout.GROUPS)]
    log.info("%d sentences; codes used by group: %s", len(codes), used)
    said = [(one.text, one.voice, one.frames) for part in parts for one in part["said"]]
    _keep(options, "codes", {"said": said, "asked": asked, "codes": whole.numpy(), "vectors": found["vectors"]})


def train_talker(options: argparse.Namespace) -> None:
    """The talker on the codes, with the questions before the answers."""
    coded, (tokenizer, model) = _kept(options, "codes"), _fresh(options)
    writer, chance = thinker.Writer(tokenizer), random.Random(options.seed + 20)
    codes = torch.from_numpy(coded["codes"]).split([frames for *_, frames in coded["said"]], dim=2)
    everything = [turns for some in coded["asked"].values() for turns in some]
    spoken = [
        talker.Spoken(
            user=user_rows(writer, chance, coded["asked"].get(text, [("",)]), everything),
            answer=tuple(writer.encode(text)),
            speaker=layout.VOICES[voice],
            codes=one,
        )
        for (text, voice, _), one in zip(coded["said"], codes, strict=True)
    ]
    times = Counter(text for text, _, _ in coded["said"])
    once = [place for place, (text, _, _) in enumerate(coded["said"]) if times[text] == 1]
    held = set(chance.sample(once, min(_HELD, len(once) // 20)))

    torch.manual_seed(options.seed)
    talker.begin(model.talker, coded["vectors"].float())
    talker.train(
        model.talker,
        model.thinker.get_input_embeddings().weight.detach(),
        model.config,
        writer.newline,
        [one for place, one in enumerate(spoken) if place not in held],
        held=[spoken[place] for place in sorted(held)],
        keep=_keeper(options, "talker", model.talker),
        record=not options.plain,
        **_common(options, "talker"),
    )


def pack_all(options: argparse.Namespace) -> None:
    """The parts as one checkpoint, and that made small enough for the repository. Raises ValueError for a thinker or
    talker that was trained with another tokenizer or table."""
    tokenizer, model = _fresh(options)
    made_for = _fingerprint(options)
    for name, part in {"thinker": model.thinker, "talker": model.talker, "codec": model.code2wav}.items():
        kept = _kept(options, name)
        if name != "codec" and kept["fresh"] != made_for:
            raise ValueError(
                f"{name}.pickle was not trained with the tokenizer and the table in fresh.pickle: put files together "
                "whose data was made with one --seed and --sentences"
            )
        part.load_state_dict(kept["weights"])
    layout.save(options.out / "checkpoint", model.eval(), tokenizer)
    log.info("packed: %.1f MB", pack(options.out / "checkpoint", options.out / "packed") / 1e6)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "data": data,
    "thinker": train_thinker,
    "strings": strings,
    "codec": train_codec,
    "codes": encode,
    "talker": train_talker,
    "pack": pack_all,
}


def user_rows(
    writer: thinker.Writer, chance: random.Random, asked: list[tuple[str, ...]], everything: list[tuple[str, ...]]
) -> tuple[int, ...]:
    """The user's turns before a spoken answer, as often those before another one, and sometimes others before them: or
    else the talker would read aloud what the user said. Now and then with rows of media, which say nothing to it."""
    turns = chance.choice(asked if chance.random() < 0.5 else everything)
    if chance.random() < 0.3:
        turns = (*chance.choice(everything), *turns)
    rows = [writer.user(turn) for turn in turns]
    media = chance.choice(_MEDIA_ROWS) if chance.random() < 0.3 else 0
    rows[-1][3:3] = [talker.NONE] * media
    return tuple(itertools.chain.from_iterable(rows))


def _common(options: argparse.Namespace, part: str) -> dict[str, Any]:
    seconds = _SECONDS[part] if options.seconds is None else options.seconds
    batches = {"thinker": 512, "codec": 32, "talker": 256}
    batch = options.batch or batches[part]
    return {"seconds": seconds, "batch": batch, "device": options.device, "seed": options.seed}


def _keep(options: argparse.Namespace, name: str, content: dict[str, Any]) -> None:
    if "weights" in content:
        content = content | {"weights": {key: value.half().cpu() for key, value in content["weights"].items()}}
    path = options.out / f"{name}.pickle"
    with path.with_suffix(".new").open("wb") as file:
        pickle.dump(content, file, protocol=5)
    path.with_suffix(".new").replace(path)  # so that a run that is ended here loses only this one


def _keeper(options: argparse.Namespace, name: str, module: Any) -> Callable[[], None]:
    """Keeps, whenever it is called, the weights that `module` has then, and which tokenizer and table they go with."""
    made_for = _fingerprint(options)
    return lambda: _keep(options, name, {"weights": module.state_dict(), "fresh": made_for})


def _kept(options: argparse.Namespace, name: str) -> dict[str, Any]:
    with (options.out / f"{name}.pickle").open("rb") as file:
        found: dict[str, Any] = pickle.load(file)
    return found


def _fingerprint(options: argparse.Namespace) -> str:
    """Of the tokenizer and the table that `data` left."""
    found = _kept(options, "fresh")
    digest = hashlib.sha256(found["tokenizer"].backend_tokenizer.to_str().encode())
    digest.update(found["table"].numpy().tobytes())
    return digest.hexdigest()


def _fresh(options: argparse.Namespace) -> tuple[Any, Any]:
    """Tokenizer and fresh model with the table that `data` left, in whichever process this is."""
    found = _kept(options, "fresh")
    torch.manual_seed(options.seed)
    model = layout.model(found["tokenizer"])
    model.thinker.get_input_embeddings().weight.data.copy_(found["table"])
    return found["tokenizer"], model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=(*PARTS, "all"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--drawings", type=Path, help="what training of nano-image saved; else from the emoji font")
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--strings", type=int, default=100_000, help="of words, beside those that `data` draws")
    parser.add_argument("--seconds", type=float, help="of training, of each part")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--resume", type=Path, help="an earlier thinker.pickle, from whose weights the thinker goes on")
    parser.add_argument("--plain", action="store_true", help="neither compile nor record codec or talker on the GPU")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)8.0f ms  %(message)s")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    # Its backward gives NaN on Hopper: https://github.com/pytorch/pytorch/issues/196678
    torch.backends.cuda.enable_cudnn_sdp(False)
    options.out.mkdir(parents=True, exist_ok=True)
    for part in PARTS if options.part == "all" else (options.part,):
        log.info("%s", part)
        PARTS[part](options)


if __name__ == "__main__":
    main()
