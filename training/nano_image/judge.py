"""The judge of pictures: a small CNN that reads which things stand left (or alone) and right, how large, on what."""

import itertools
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from training.budget import moments
from training.nano_image.captions import SIZES, Combinations, Scene, scenes_of
from training.nano_image.drawings import BACKGROUNDS, Drawings
from training.nano_image.scenes import Painter
from training.repeat import Step, half

log = logging.getLogger(__name__)
_CHANNELS = (3, 32, 64, 96, 128)
_RATE = 2e-3


class Judge(nn.Module):
    """Four answers a picture: thing, right thing (the last class: none), size, background."""

    def __init__(self, things: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(_CHANNELS):
            for channels, stride in ((before, 1 if before == 3 else 2), (after, 1)):
                layers += [nn.Conv2d(channels, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d((2, 4)), nn.Flatten())
        self.heads = nn.ModuleList(
            nn.Linear(8 * _CHANNELS[-1], classes) for classes in (things, things + 1, len(SIZES), len(BACKGROUNDS))
        )

    def forward(self, pixels: Any) -> tuple[Any, ...]:
        """Logits [batch, classes] each, of pixels [batch, 3, side, side] in [-1, 1]."""
        seen = self.body(pixels)
        return tuple(head(seen) for head in self.heads)

    def read(self, pixels: Any) -> list[Scene]:
        """What it sees."""
        with torch.no_grad():
            answers = zip(*(logits.argmax(1).tolist() for logits in self(pixels)), strict=True)
        none = self.heads[1].out_features - 1
        return [
            Scene(thing=thing, right=None if right == none else right, size=size, background=background)
            for thing, right, size, background in answers
        ]


def train(
    drawings: Drawings, painter: Painter, *, seconds: float, batch: int, device: str, seed: int, record: bool
) -> Judge:
    """Learns from all scenes, held-out ones as well."""
    torch.manual_seed(seed)
    scenes = Combinations(drawings, device, unseen=None)
    things = len(drawings.names)
    judge = Judge(things)
    judge.to(device)

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
        if now.step % 250 == 0:
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
            for one, seen in zip(asked, judge.read(shown), strict=True)
        )
        / len(asked)
        for shown in (pixels, again.clamp(-1, 1))
    )


def save(judge: Judge, path: Path) -> None:
    save_file({name: values.half() for name, values in judge.state_dict().items()}, path)


def load(path: Path, things: int) -> Judge:
    judge = Judge(things)
    judge.load_state_dict({name: values.float() for name, values in load_file(path).items()}, assign=True)
    judge.eval()
    return judge
