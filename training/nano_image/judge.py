"""The judge of pictures, trained and checked."""

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from stages.models.qwen_image.judge import Judge
from training.budget import moments
from training.nano_image.captions import SIZES, Combinations, Scene, scenes_of
from training.nano_image.drawings import BACKGROUNDS, Drawings
from training.nano_image.scenes import Painter
from training.repeat import Step, half

log = logging.getLogger(__name__)
_RATE = 2e-3


def train(
    drawings: Drawings, painter: Painter, *, seconds: float, batch: int, device: str, seed: int, record: bool
) -> Judge:
    """Learns from all scenes, held-out ones as well."""
    torch.manual_seed(seed)
    scenes = Combinations(drawings, device, unseen=None)
    things = len(drawings.names)
    judge = Judge(things, things + 1, len(SIZES), len(BACKGROUNDS)).to(device)

    def loss() -> Any:
        rows = scenes.draw(batch, pairs=0.5)
        pixels = painter.paint_rows(rows).contiguous(memory_format=torch.channels_last)
        pixels = pixels + 0.1 * torch.rand(batch, 1, 1, 1, device=device) * torch.randn_like(pixels)
        with half(device):
            answers = judge(pixels)
        wanted = rows.masked_fill(rows < 0, things).unbind(1)
        return sum(F.cross_entropy(logits.float(), right) for logits, right in zip(answers, wanted, strict=True))

    step = Step(loss, judge.parameters(), device=device, record=record)
    for now in moments(seconds):
        found = step(now.rate(_RATE))
        if now.told:
            log.info("judge: step %d, %d %% of the time, loss %.4f", now.step, 100 * now.done, found.item())
    log.info("judge: %d steps", now.step + 1)
    judge.eval()
    return judge


def check(judge: Judge, drawings: Drawings, painter: Painter, autoencoder: Any, device: str) -> tuple[float, ...]:
    """The share of scenes of two things of which it reads both: painted, and after the VAE, which is the most that
    drawings can reach."""
    from training.nano_image.vae import decode, moments_of, stills

    rows = Combinations(drawings, device, unseen=None).draw(512, pairs=1.0)
    with torch.no_grad(), stills(autoencoder):
        pixels = painter.paint_rows(rows)
        again = torch.cat([decode(autoencoder, moments_of(autoencoder, part)[0]) for part in pixels.split(64)])
    asked = scenes_of(rows)
    return tuple(
        sum(
            (one.thing, one.right) == (seen.thing, seen.right)
            for one, seen in zip(asked, read(judge, shown), strict=True)
        )
        / len(asked)
        for shown in (pixels, again.clamp(-1, 1))
    )


def read(judge: Judge, pixels: Any) -> list[Scene]:
    """What it sees."""
    none = judge.heads[1].out_features - 1
    return [
        Scene(thing=thing, right=None if right == none else right, size=size, background=background)
        for thing, right, size, background in judge.read(pixels)
    ]


def save(judge: Judge, path: Path) -> None:
    save_file({name: values.half() for name, values in judge.state_dict().items()}, path)
