"""Writes what `omni eval` asks a checkpoint: `python -m training.export_eval omni|image --out FOLDER`, where FOLDER is
what the repository gets (`packed/`). Everything but half of the pictures is held out from training; all is seeded.

`omni` needs hibari-tts, for what is heard and how long answers take to be said.
"""

import argparse
import base64
import io
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from training.nano_image import captions, drawings
from training.nano_image.captions import SIZES
from training.nano_image.drawings import BACKGROUNDS, Drawings
from training.nano_omni import dialogues, knowledge, layout
from training.nano_omni.dialogues import Dialogue

_TOPICS = ("capital", "sum", "colour", "opposite", "calendar", "counting", "spelling", "saying", "name", "unknown")
_EACH = 10  # of a topic
_TEMPLATES, _STRINGS, _LOOKS, _CLIPS, _QUESTIONS, _PICTURES = 32, 24, 24, 24, 12, 24
_SHORT = (*knowledge.SHORT[:8], "Wow", "1", "7", "12")
_STRING = 3  # words, at least: a shorter one may have been said in other company
_TRIES = 20_000
_VOICES = tuple(layout.VOICES)
_HEARD_S = 4.4
Line = dict[str, Any]


def omni_items(drawn: Drawings, seed: int, workers: int) -> Iterator[Line]:
    """Held-out dialogues in text, of pictures, of sounds, and those whose answers are spoken."""
    from training.nano_omni import speech

    chance = random.Random(f"eval {seed}")

    def some(count: int, fits: Callable[[Dialogue], bool], heard: bool = False) -> list[Dialogue]:
        """As many different ones, or as many as there are."""
        draw = dialogues.draw_heard if heard else dialogues.draw_dialogue
        found: dict[str, Dialogue] = {}
        for _ in range(_TRIES):
            one = draw(chance, unseen=True)
            if fits(one):
                found.setdefault(repr(one), one)
            if len(found) == count:
                break
        return list(found.values())

    for topic in _TOPICS:
        for one in some(_EACH, lambda one, topic=topic: one.topic == topic):  # type: ignore[misc]
            yield {"group": "text", "topic": topic, "answer": one.answer, "request": _asked(one)}
    yield from _seen(drawn, chance, seed)
    heard = [("words", one) for one in some(2 * _CLIPS, lambda one: one.topic == "hearing", heard=True)]
    heard += [("questions", one) for one in some(2 * _QUESTIONS, lambda one: one.topic != "hearing", heard=True)]
    spoken = [("templates", one) for one in some(_TEMPLATES, lambda one: one.topic != "saying")]
    spoken += [
        ("word strings", one)
        for one in some(_STRINGS, lambda one: one.topic == "saying" and len(one.answer.split()) >= _STRING)
    ]
    spoken += [("very short", Dialogue(topic="saying", turns=(f"Say: {text}", text))) for text in _SHORT]
    voices = [_VOICES[place % len(_VOICES)] for place in range(max(len(heard), len(spoken)))]
    said = speech.say(
        [*((one.heard, voice) for (_, one), voice in zip(heard, voices, strict=False))]
        + [(one.answer, voice) for (_, one), voice in zip(spoken, voices, strict=False)],
        workers,
    )
    left = Counter({"words": _CLIPS, "questions": _QUESTIONS})
    for (topic, one), clip in zip(heard, said, strict=False):
        if left[topic] and len(clip.samples) < _HEARD_S * speech.RATE:
            left[topic] -= 1
            request = {**_asked(one), "audios": [_opus(clip.samples, speech.RATE)]}
            yield {"group": "hearing", "topic": topic, "answer": one.answer, "request": request}
    for (topic, one), clip in zip(spoken, said[len(heard) :], strict=True):
        line = {"duration_s": len(clip.samples) / speech.RATE, "request": {**_asked(one), "voice": clip.voice}}
        yield {"group": "speech", "topic": topic, "answer": one.answer, **line}


def _asked(one: Dialogue) -> Line:
    asked = one.turns[:-1]
    if len(asked) == 1:
        return {"prompt": asked[0]}
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[at % 2], "content": turn} for at, turn in enumerate(asked)]}


def _seen(drawn: Drawings, chance: random.Random, seed: int) -> Iterator[Line]:
    import torch
    from PIL import Image

    from training.nano_image.scenes import Painter

    generator = torch.Generator().manual_seed(seed)
    for pairs, topic in enumerate(("one thing", "two things")):
        scenes = [captions.draw_scene(chance, drawn, pairs=pairs, unseen=True) for _ in range(_LOOKS)]
        pixels = Painter(drawn, "cpu").paint(scenes, generator).add(1).mul(127.5).round().byte()
        for scene, picture in zip(scenes, pixels.permute(0, 2, 3, 1).numpy(), strict=True):
            one = dialogues.draw_seen(chance, scene, drawn, list(BACKGROUNDS))
            file = io.BytesIO()
            Image.fromarray(picture).save(file, "WEBP", lossless=True, quality=100, method=6)
            request = {**_asked(one), "images": [_data_url("image/webp", file.getvalue())]}
            yield {"group": "seeing", "topic": topic, "answer": one.answer, "request": request}


def _opus(samples: Any, rate: int) -> str:
    import soundfile
    import soxr

    file = io.BytesIO()
    heard = soxr.resample(np.asarray(samples) / 32768.0, rate, 16_000)
    soundfile.write(file, heard, 16_000, format="OGG", subtype="OPUS")
    return _data_url("audio/ogg", file.getvalue())


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image_items(drawn: Drawings, seed: int) -> Iterator[Line]:
    """Scenes of one thing and of two, that training has seen and that it has not."""
    for pairs, things in enumerate(("one thing", "two things")):
        for unseen, topic in enumerate((things, f"{things}, held out")):
            chance = random.Random(f"eval {seed} {topic}")
            for _ in range(_PICTURES):
                scene = captions.draw_scene(chance, drawn, pairs=pairs, unseen=bool(unseen))
                right = {
                    "thing": drawn.names[scene.thing],
                    "right": "" if scene.right is None else drawn.names[scene.right],
                    "colour": drawn.colours[scene.thing],
                    "size": (SIZES[scene.size] or "usual") if scene.right is None else "",
                    "background": list(BACKGROUNDS)[scene.background],
                }
                request = {"prompt": captions.plain(scene, drawn)}
                yield {"group": "pictures", "topic": topic, "drawn": right, "request": request}


def judge_names(drawn: Drawings) -> Line:
    """What the judge's classes are called."""
    sizes = [size or "usual" for size in SIZES]
    return {"things": drawn.names, "colours": drawn.colours, "sizes": sizes, "backgrounds": list(BACKGROUNDS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("omni", "image"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--drawings", type=Path, help="what training of nano-image saved; else from the emoji font")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {options.out}: is no folder and cannot become one: {error.strerror}")
    drawn = drawings.load(options.drawings) if options.drawings else drawings.draw()
    if options.model == "image":
        drawn = drawn.few()
        (options.out / "judge.json").write_text(json.dumps(judge_names(drawn)) + "\n", encoding="utf-8")
        lines = list(image_items(drawn, options.seed))
    else:
        lines = list(omni_items(drawn, options.seed, options.workers))
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (options.out / "eval.jsonl").write_text(text, encoding="utf-8")
    counts = Counter(f"{line['group']}: {line['topic']}" for line in lines)
    print(f"{len(text.encode()) / 1e6:.2f} MB: {dict(counts)}")


if __name__ == "__main__":
    main()
