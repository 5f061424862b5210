"""Decoded request media: the array that a model takes, and what was done to make it."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoded:
    """`array` by what was asked for:

    image: uint8 RGB (height, width, 3), upright. audio: float32 mono (N,) at 16 kHz, nominally within [-1, 1], all
    finite, N >= 1. video: uint8 RGB (T, height, width, 3), upright, T >= 1, at `fps` frames a second; its sound track
    is not decoded (ask for the audio of the same source), and a note says so.
    """

    label: str
    array: NDArray[Any]
    fps: float = 0.0
    sha256: str
    notes: tuple[str, ...]
