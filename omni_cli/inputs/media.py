"""Decoded request media: the array that a model takes, what the source was, and what was done to it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedImage:
    """`pixels` is uint8 RGB (height, width, 3), upright. Source facts are from before any change."""

    label: str
    pixels: NDArray[np.uint8]
    format: str
    mode: str
    source_width: int
    source_height: int
    size_bytes: int
    sha256: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedAudio:
    """`samples` is float32 mono (N,) at `sample_rate_hz`, nominally within [-1, 1], all finite, N >= 1."""

    label: str
    samples: NDArray[np.float32]
    sample_rate_hz: int
    format: str
    codec: str
    source_rate_hz: int
    source_channels: int
    source_duration_s: float
    size_bytes: int
    sha256: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedVideo:
    """`frames` is uint8 RGB (T, height, width, 3), upright, T >= 1, at `fps` frames a second.

    `has_audio` says whether the source has a sound track; it is not decoded here (`decode_audio` takes the
    same source), and a note says so.
    """

    label: str
    frames: NDArray[np.uint8]
    fps: float
    has_audio: bool
    format: str
    codec: str
    source_width: int
    source_height: int
    source_fps: float
    source_frames: int
    size_bytes: int
    sha256: str
    notes: tuple[str, ...]
