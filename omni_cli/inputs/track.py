"""A sound track on its way in: its facts from the header, and its samples block by block."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AudioTrack:
    """`blocks` yields float32 (n, channels) at `sample_rate_hz` and raises InputError where decoding fails.

    `declared_frames` is 0 where the header does not say. A track of fewer than `least_frames` was cut.
    """

    sample_rate_hz: int
    channels: int
    declared_frames: int
    least_frames: int = 0
    blocks: Iterator[NDArray[np.float32]]
    notes: tuple[str, ...] = ()
