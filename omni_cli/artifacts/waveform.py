"""Brings what an audio stage hands over to one form: float32, mono, within [-1, 1], at the rate the stage declares.

It never resamples, and never lets a sample through that is not a number: a file with one would play at full scale.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omni_cli.errors import StageFailure

MAX_RATE_HZ = 768_000
_INT16_SCALE = np.float32(1.0 / 32768.0)
_PLAIN_DTYPES = {"float32": "<f4", "float16": "<f2", "int16": "<i2"}
Raw = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waveform:
    """`samples` is float32 (N,) within [-1, 1]; N is 0 where the stage had nothing to say.

    `rate_hz` is None only where not even an empty piece came.
    """

    samples: NDArray[np.float32]
    rate_hz: int | None
    warnings: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not len(self.samples)

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.rate_hz if self.rate_hz else 0.0


class AudioCollector:
    """Takes one request's audio piece by piece, as a stage sends it, and gives the whole.

    Every failure is a StageFailure (server) that names the stage and the request.
    """

    def __init__(self, *, stage: str, request_id: str | None = None) -> None:
        self._stage = stage
        self._request_id = request_id
        self._pieces: list[NDArray[np.float32]] = []
        self._rate_hz: int | None = None
        self._clipped = 0
        self._peak = 0.0
        self.frames = 0

    def append(self, data: Raw, *, rate_hz: object, dtype: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Adds a piece and returns it as float32 (n,).

        `data` is little-endian, in C order; `shape` is (n,), (1, n), (1, 1, n) or (n, 1).
        """
        if isinstance(rate_hz, bool) or not isinstance(rate_hz, int) or not 1 <= rate_hz <= MAX_RATE_HZ:
            raise self._failure(f"declared a sample rate of {rate_hz!r}; a whole number of Hz is needed")
        if self._rate_hz is not None and rate_hz != self._rate_hz:
            raise self._failure(f"changed its sample rate from {self._rate_hz} to {rate_hz} Hz half-way")
        row = len(shape) in (1, 2, 3) and all(side == 1 for side in shape[:-1])
        if not row and not (len(shape) == 2 and shape[1] == 1):
            raise self._failure(f"gave audio of shape {shape}; (N,), (1, N), (1, 1, N) or (N, 1) is needed")
        length = math.prod(shape)
        values = self._as_float32(data, dtype, length)
        finite = np.isfinite(values)
        if not finite.all():
            place = self.frames + int(np.argmin(finite))
            raise self._failure(f"gave samples that are not finite numbers (the first is sample {place})")
        self._rate_hz = rate_hz
        peak = float(np.abs(values).max(initial=0.0))
        if peak > 1.0:
            self._clipped += int(np.count_nonzero(np.abs(values) > 1.0))
            self._peak = max(self._peak, peak)
            values = np.clip(values, -1.0, 1.0)
        self._pieces.append(values)
        self.frames += length
        return values

    def finish(self) -> Waveform:
        """All pieces in order; an empty waveform where no sample came."""
        samples = np.concatenate(self._pieces) if self._pieces else np.zeros(0, np.float32)
        warnings: tuple[str, ...] = ()
        if self._clipped:
            warnings = (
                f"stage {self._stage}: {self._clipped} of {self.frames} samples lay outside [-1, 1] "
                f"(peak {self._peak:.3g}) and were clipped",
            )
        return Waveform(samples=samples, rate_hz=self._rate_hz, warnings=warnings)

    def _as_float32(self, data: Raw, dtype: str, length: int) -> NDArray[np.float32]:
        """A fresh float32 (length,): the caller's memory may be a ring slot that is given back."""
        if dtype != "bfloat16" and dtype not in _PLAIN_DTYPES:
            raise self._failure(f"gave audio of dtype {dtype}; float32, float16, bfloat16 or int16 is needed")
        wire = np.dtype(_PLAIN_DTYPES.get(dtype, "<u2"))
        if memoryview(data).nbytes % wire.itemsize:
            raise self._failure(f"gave {memoryview(data).nbytes} bytes, which are no whole samples of {dtype}")
        flat = np.frombuffer(data, dtype=wire)
        if len(flat) != length:
            raise self._failure(f"declared {length} samples and gave {len(flat)}")
        if dtype == "bfloat16":  # the upper half of a float32
            return (flat.astype(np.uint32) << 16).view(np.float32)
        values = flat.astype(np.float32)
        return values * _INT16_SCALE if dtype == "int16" else values

    def _failure(self, what: str) -> StageFailure:
        request = f" of request {self._request_id}" if self._request_id is not None else ""
        return StageFailure(f"stage {self._stage}{request}: {what}", stage=self._stage, request_id=self._request_id)
