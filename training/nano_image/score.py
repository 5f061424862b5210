"""How well a checkpoint draws: diffusers' own pipeline over held-out scenes, read by the judge."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stages.models.qwen_image.judge import Judge
from training.nano_image.captions import Scene, draw_scene, plain
from training.nano_image.drawings import Drawings
from training.nano_image.judge import read as read_by
from training.nano_image.layout import SIDE

_BATCH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Shares, 0 to 1. `colour` is of shapes alone; of pairs, `thing` asks for both; `size` of single things alone."""

    name: str
    pictures: int
    thing: float
    colour: float
    background: float
    size: float

    def line(self) -> str:
        parts = (f"{part} {100 * getattr(self, part):.1f} %" for part in ("thing", "colour", "background", "size"))
        return f"{self.name} ({self.pictures} pictures): {', '.join(parts)}"


Draw = Callable[[Sequence[str], Sequence[int]], Any]
"""Pictures [prompts, 3, SIDE, SIDE] in [-1, 1] for prompts, each with its seed."""


def measure(draw: Draw, judge: Judge, drawings: Drawings, *, pictures: int, seed: int) -> list[Score]:
    """One score each for seen and held-out scenes of one thing and of two."""
    found = []
    for name, pairs, unseen in (
        ("one thing", 0.0, False),
        ("one thing, held out", 0.0, True),
        ("two things", 1.0, False),
        ("two things, held out", 1.0, True),
    ):
        chance = random.Random(f"{seed} {name}")
        scenes = [draw_scene(chance, drawings, pairs=pairs, unseen=unseen) for _ in range(pictures)]
        read: list[Scene] = []
        for start in range(0, pictures, _BATCH):
            part = scenes[start : start + _BATCH]
            prompts = [plain(scene, drawings) for scene in part]
            read += read_by(judge, draw(prompts, [seed + start + place for place in range(len(part))]))
        found.append(_score(name, scenes, read, drawings))
    return found


def pipeline_draw(pipeline: Any, *, steps: int, true_cfg_scale: float) -> Draw:
    """Draws with diffusers' pipeline, guided."""

    def draw(prompts: Sequence[str], seeds: Sequence[int]) -> Any:
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        drawn = pipeline(
            prompt=list(prompts),
            negative_prompt=[""] * len(prompts),
            true_cfg_scale=true_cfg_scale,
            num_inference_steps=steps,
            height=SIDE,
            width=SIDE,
            generator=generators,
            output_type="pt",
        ).images
        return drawn * 2 - 1

    pipeline.set_progress_bar_config(disable=True)
    return draw


def _score(name: str, asked: Sequence[Scene], read: Sequence[Scene], drawings: Drawings) -> Score:
    pairs = list(zip(asked, read, strict=True))
    colours = [
        (drawings.colours[scene.thing], drawings.colours[seen.thing])
        for scene, seen in pairs
        if drawings.colours[scene.thing]
    ]
    return Score(
        name=name,
        pictures=len(pairs),
        thing=_share([(scene.thing, scene.right) == (seen.thing, seen.right) for scene, seen in pairs]),
        colour=_share([wanted == found for wanted, found in colours]),
        background=_share([scene.background == seen.background for scene, seen in pairs]),
        size=_share([scene.size == seen.size for scene, seen in pairs if scene.right is None]),
    )


def _share(right: Sequence[bool]) -> float:
    return sum(right) / len(right) if right else float("nan")
