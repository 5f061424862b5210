"""What the teacher's voice says: sentences as sound, in two voices, made by all cores.

The teacher is hibari-tts (Apache-2.0), one voice. The second voice is the first one lowered: said faster, then played
slower, so that it takes as long and pitch and formants lie lower.
"""

import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from training.nano_omni.layout import FRAME

RATE = 24_000
_LOWERED = {"chelsie": 1.0, "ethan": 0.84}
_SILENCE_S = 0.12  # after the last word: what ends a sentence is part of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """`samples` int16 at RATE, whole frames."""

    text: str
    voice: str
    samples: Any

    @property
    def frames(self) -> int:
        return len(self.samples) // FRAME


def say(jobs: Sequence[tuple[str, str]], workers: int) -> list[Said]:
    """Each text in a voice. Raises ImportError where hibari-tts is not installed."""
    with multiprocessing.get_context("spawn").Pool(workers, initializer=_begin) as pool:
        return pool.map(_say, jobs, chunksize=16)


_teacher: Any = None


def _begin() -> None:
    global _teacher
    os.environ["OMP_NUM_THREADS"] = "1"
    from hibari import Hibari

    _teacher = Hibari(threads=1)


def _say(job: tuple[str, str]) -> Said:
    import soxr

    text, voice = job
    lowered = _LOWERED[voice]
    samples = np.asarray(_teacher(_spoken(text), seed=0, speed=1 / lowered), dtype=np.float32)
    if lowered != 1.0:
        samples = soxr.resample(samples, RATE * lowered, RATE)
    samples = np.concatenate([samples, np.zeros(round(_SILENCE_S * RATE), dtype=np.float32)])
    samples = np.pad(samples, (0, -len(samples) % FRAME))
    peak = max(float(np.abs(samples).max()), 1e-3)
    return Said(text=text, voice=voice, samples=(samples * (0.8 * 32767 / max(peak, 0.8))).astype("<i2"))


def _spoken(text: str) -> str:
    """Letters that are spelled are said one by one."""
    letters = text.rstrip(".").split(", ")
    return ". ".join(letters) + "." if all(len(letter) == 1 and letter.isalpha() for letter in letters) else text
