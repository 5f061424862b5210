"""The judge of nano-image's pictures: a small network that reads which things stand left (or alone) and right, how
large, on what. It is no part of the pipeline."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

_CHANNELS = (3, 32, 64, 96, 128)


class Judge(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Four answers a picture: thing, right thing (the last class: none), size, background; `classes` of each."""

    def __init__(self, *classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(_CHANNELS):
            for channels, stride in ((before, 1 if before == 3 else 2), (after, 1)):
                layers += [nn.Conv2d(channels, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d((2, 4)), nn.Flatten())
        self.heads = nn.ModuleList(nn.Linear(8 * _CHANNELS[-1], count) for count in classes)

    def forward(self, pixels: Any) -> tuple[Any, ...]:
        """Logits [batch, classes] each, of pixels [batch, 3, side, side] in [-1, 1]."""
        seen = self.body(pixels)
        return tuple(head(seen) for head in self.heads)

    def read(self, pixels: Any) -> list[list[int]]:
        """The class of each answer, for every picture."""
        with torch.no_grad():
            return torch.stack([logits.argmax(1) for logits in self(pixels)], 1).tolist()  # type: ignore[no-any-return]


def load(path: Path) -> Judge:
    """On the CPU, in float32, ready to read. Raises FileNotFoundError."""
    weights = {name: values.float() for name, values in load_file(path).items()}
    judge = Judge(*(len(values) for name, values in weights.items() if name.startswith("heads") and values.ndim == 1))
    judge.load_state_dict(weights)
    judge.eval()
    return judge


def reader(path: Path) -> Callable[[Any], list[int]]:
    """What the judge at `path` reads in a picture: uint8 [side, side, 3]."""
    judge = load(path)

    def read(pixels: Any) -> list[int]:
        return judge.read(torch.from_numpy(pixels).permute(2, 0, 1)[None] / 127.5 - 1)[0]

    return read
