"""Makes nano-omni from nothing, part by part: `python -m training.nano_omni.train PART --out FOLDER`.

The parts are `data`, `thinker`, `codec`, `talker` and `pack`, in this order, or `all`; each takes from FOLDER what the
ones before it have left. `thinker` may run beside `codec` and `talker`, which do not need it. On one GPU each takes at
most a few minutes.
"""

import argparse
import itertools
import logging
import os
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from training.nano_image import drawings as pictures
from training.nano_image.captions import Scene, draw_scene
from training.nano_image.scenes import Painter
from training.nano_omni import codec, dialogues, experts, layout, speech, talker, thinker
from training.nano_omni.perception import HEARD_RATE
from training.pack import pack

log = logging.getLogger(__name__)
_SECONDS = {"thinker": 240.0, "codec": 215.0, "talker": 385.0}
_SHORT = 8  # letters: what is so short is said in every voice
_SIDE = 128  # pixels of a picture that it learns to see
_HELD = 256  # sentences that are said to be heard for the scores
_HEARD_S = 4.5  # of a sound, at most: few are longer
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
    _keep(options, "fresh", {"tokenizer": tokenizer, "model": layout.model(tokenizer)})
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
    chance, drawn = random.Random(options.seed + 10), _drawings(options)
    painter, generator = Painter(drawn, options.device), torch.Generator().manual_seed(options.seed)

    def painted(scenes: list[Scene]) -> Any:
        return torch.cat(
            [
                (painter.paint(scenes[start : start + 512], generator) * 127.5 + 127.5).round().byte()
                for start in range(0, len(scenes), 512)
            ]
        )

    many = 10 * options.sentences
    talks = [dialogues.draw_dialogue(chance, unseen=False) for _ in range(many)]
    seen, scenes = _looks(chance, drawn, many // 2)
    writer = thinker.Writer(tokenizer)
    spoken = [dialogues.written(chance, one.text) for one in kept["said"]]
    answers = [one for one in spoken if one is not None and not dialogues.held_out(one)]
    heard, sounds = _sounds(kept, [*kept["heard"], *answers])
    parts: dict[dialogues.Medium, thinker.Lines] = {
        "none": thinker.lines_of(writer, talks, options.device),
        "image": thinker.lines_of(writer, seen, options.device, pixels=painted(scenes)),
        "audio": thinker.lines_of(writer, heard, options.device, sounds=sounds),
    }
    log.info("%d dialogues in text, %d of pictures, %d of sounds", len(talks), len(seen), len(heard))

    def keep() -> None:
        _keep(options, "thinker", {"weights": model.thinker.state_dict()})

    thinker.train(model.thinker, parts, keep=keep, **_common(options, "thinker"))
    keep()
    unheard, held = _sounds(kept, kept["unheard"]), min(4 * _HELD, options.sentences)
    unseen, scenes = _looks(chance, drawn, held, unseen=True)
    told = [dialogues.draw_dialogue(chance, unseen=True) for _ in range(held)]
    for asked, media in ((told, {}), (unseen, {"pixels": painted(scenes)}), (unheard[0], {"sounds": unheard[1]})):
        lines = thinker.lines_of(writer, asked, options.device, **media)
        found = [writer.decode(ids) for ids in thinker.answered(model.thinker, lines, writer.end)]
        for line in thinker.scores(asked, found):
            log.info("held out: %s", line)


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
    """Encoder, codebooks and Code2Wav; then every sentence as codes."""
    import numpy as np

    said, (_, model) = _kept(options, "data")["said"], _fresh(options)
    samples = torch.from_numpy(np.concatenate([one.samples for one in said])).to(options.device)
    trained = codec.train(model.code2wav, samples, record=not options.plain, **_common(options, "codec"))
    frames = [one.frames for one in said]
    torch.backends.cudnn.benchmark = False  # every length comes a few times only
    coded = trained.coded(samples, frames)
    used = [len(group.unique()) for group in torch.cat(coded, dim=1)]
    log.info("codes used by group: %s", used)
    _keep(
        options,
        "codec",
        {"weights": trained.code2wav.state_dict(), "codes": coded, "vectors": trained.codebooks.vectors.cpu()},
    )


def train_talker(options: argparse.Namespace) -> None:
    """The talker on the codes, with the questions before the answers."""
    kept, (tokenizer, model) = _kept(options, "data"), _fresh(options)
    coded = _noise(kept["said"]) if options.trial else _kept(options, "codec")
    writer = thinker.Writer(tokenizer)
    asked: dict[str, list[str]] = {}
    for one in kept["talks"]:
        asked.setdefault(one.answer, []).append(one.turns[-2])
    chance = random.Random(options.seed + 20)
    spoken = [
        talker.Spoken(
            user=_user_rows(writer, chance, asked.get(said.text, [""])),
            answer=tuple(writer.encode(said.text)),
            speaker=layout.VOICES[said.voice],
            codes=codes,
        )
        for said, codes in zip(kept["said"], coded["codes"], strict=True)
    ]

    def keep() -> None:
        if not options.trial:
            _keep(options, "talker", {"weights": model.talker.state_dict()})

    torch.manual_seed(options.seed)
    talker.begin(model.talker, coded["vectors"])
    table = model.thinker.get_input_embeddings().weight.detach()
    common: dict[str, Any] = {"record": not options.plain, "keep": keep} | _common(options, "talker")
    talker.train(model.talker, table, model.config, writer.newline, spoken, **common)


def _noise(said: list[speech.Said]) -> dict[str, Any]:
    """Codes as long as what was said, that say nothing."""
    codes = [torch.randint(layout.CODES, (layout.GROUPS, one.frames)) for one in said]
    return {"codes": codes, "vectors": torch.randn(layout.GROUPS, layout.CODES, layout.GROUPS)}


def pack_all(options: argparse.Namespace) -> None:
    """The parts as one checkpoint, and that made small enough for the repository."""
    tokenizer, model = _fresh(options)
    for name, part in {"thinker": model.thinker, "talker": model.talker, "codec": model.code2wav}.items():
        part.load_state_dict(_kept(options, name)["weights"])
    layout.save(options.out / "checkpoint", model.eval(), tokenizer)
    log.info("packed: %.1f MB", pack(options.out / "checkpoint", options.out / "packed") / 1e6)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "data": data,
    "thinker": train_thinker,
    "codec": train_codec,
    "talker": train_talker,
    "pack": pack_all,
}


def _user_rows(writer: thinker.Writer, chance: random.Random, asked: list[str]) -> tuple[int, ...]:
    """The user's turn before a spoken answer, now and then with rows of media, which say nothing to the talker."""
    turn = writer.user(chance.choice(asked))
    media = chance.choice(_MEDIA_ROWS) if chance.random() < 0.3 else 0
    return (*turn[:3], *[talker.NONE] * media, *turn[3:])


def _common(options: argparse.Namespace, part: str) -> dict[str, Any]:
    seconds = _SECONDS[part] if options.seconds is None else options.seconds
    batches = {"thinker": 512, "codec": 32, "talker": 256}
    batch = options.batch or batches[part]
    return {"seconds": seconds, "batch": batch, "device": options.device, "seed": options.seed}


def _keep(options: argparse.Namespace, name: str, content: dict[str, Any]) -> None:
    if "weights" in content:
        content = content | {"weights": {key: value.cpu() for key, value in content["weights"].items()}}
    path = options.out / f"{name}.pickle"
    with path.with_suffix(".new").open("wb") as file:
        pickle.dump(content, file, protocol=5)
    path.with_suffix(".new").replace(path)  # so that a run that is ended here loses only this one


def _kept(options: argparse.Namespace, name: str) -> dict[str, Any]:
    with (options.out / f"{name}.pickle").open("rb") as file:
        found: dict[str, Any] = pickle.load(file)
    return found


def _fresh(options: argparse.Namespace) -> tuple[Any, Any]:
    """Tokenizer and model as `data` left them, in whichever process this is."""
    found = _kept(options, "fresh")
    experts.use(found["model"])
    return found["tokenizer"], found["model"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=(*PARTS, "all"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--drawings", type=Path, help="what training of nano-image saved; else from the emoji font")
    parser.add_argument("--sentences", type=int, default=16_000)
    parser.add_argument("--seconds", type=float, help="of training, of each part")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--plain", action="store_true", help="neither compile nor record codec or talker on the GPU")
    parser.add_argument(
        "--trial", action="store_true", help="of the talker, before there are codes: is all compiled and recorded?"
    )
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
