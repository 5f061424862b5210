"""Samples for codec frames, in the type, shape and wave that the options ask for. Tables and bytes, no numpy.

A frame is 1920 samples: a tone of 480 samples for each of its four codes, a whole number of cycles each, so that a
frame that is lost, doubled, swapped or foreign shows.
"""

import math
import struct
from array import array
from collections.abc import Callable, Iterable
from functools import lru_cache

from stages.models.synthetic.codes import CODE_GROUPS, CODEBOOK_SIZE
from stages.models.synthetic.options import Shape, SyntheticOptions
from stages.payload import ITEM_BYTES, Payload, Tensor

FRAME_SAMPLES = 1920
TONE_SAMPLES = FRAME_SAMPLES // CODE_GROUPS
AMPLITUDE = 0.5
LOUD_AMPLITUDE = 2.0
NAN_SAMPLE = 10
SILENCE = CODEBOOK_SIZE  # a code beyond the book: no sound

_SINE_HZ = 1000


def _bfloat16(values: list[float]) -> bytes:
    """The upper half of float32, rounded to nearest even."""
    words = memoryview(array("f", values)).cast("B").cast("I")
    halves = array("H", ((word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in words))
    return halves.tobytes()


_ENCODE: dict[str, Callable[[list[float]], bytes]] = {
    "float32": lambda values: array("f", values).tobytes(),
    "float16": lambda values: struct.pack(f"<{len(values)}e", *values),
    "bfloat16": _bfloat16,
}
_NAN = {
    "float32": struct.pack("<f", math.nan),
    "float16": struct.pack("<e", math.nan),
    "bfloat16": struct.pack("<f", math.nan)[2:],
}


@lru_cache(maxsize=8)
def tones(dtype: str, amplitude: float) -> tuple[bytes, ...]:
    """The 480 samples of each code: 4 to 67 cycles. The last entry is silence."""
    period = [amplitude * math.sin(2 * math.pi * n / TONE_SAMPLES) for n in range(TONE_SAMPLES)]
    encode = _ENCODE[dtype]
    table = [
        encode([period[n * cycles % TONE_SAMPLES] for n in range(TONE_SAMPLES)])
        for cycles in range(4, 4 + CODEBOOK_SIZE)
    ]
    return (*table, encode([0.0] * TONE_SAMPLES))


@lru_cache(maxsize=8)
def _sine(dtype: str, rate_hz: int) -> bytes:
    """1 kHz for the shortest time after which it repeats."""
    length = rate_hz // math.gcd(rate_hz, _SINE_HZ)
    return _ENCODE[dtype]([AMPLITUDE * math.sin(2 * math.pi * _SINE_HZ * n / rate_hz) for n in range(length)])


def samples(codes: Iterable[int], first_frame: int, frames: int, options: SyntheticOptions) -> bytes:
    """The bytes of `frames` frames from `first_frame` on; `codes` has four for each of them."""
    wave, dtype = options.wave, options.dtype
    if wave == "empty":
        return b""
    if wave == "sine_1k":
        return _cut(_sine(dtype, options.sample_rate_hz), first_frame * FRAME_SAMPLES, frames * FRAME_SAMPLES, dtype)
    table = tones(dtype, LOUD_AMPLITUDE if wave == "loud" else AMPLITUDE)
    data = b"".join(map(table.__getitem__, codes))
    if wave == "nan" and first_frame == 0 and frames:
        start = NAN_SAMPLE * ITEM_BYTES[dtype]
        data = data[:start] + _NAN[dtype] + data[start + ITEM_BYTES[dtype] :]
    return data


def _cut(period: bytes, start: int, count: int, dtype: str) -> bytes:
    item = ITEM_BYTES[dtype]
    start = start * item % len(period)
    return (period * (count * item // len(period) + 2))[start : start + count * item]


_SHAPES: dict[Shape, Callable[[int], tuple[int, ...]]] = {
    "n": lambda n: (n,),
    "1xn": lambda n: (1, n),
    "1x1xn": lambda n: (1, 1, n),
    "nx1": lambda n: (n, 1),
}


def audio(codes: Iterable[int], first_frame: int, frames: int, options: SyntheticOptions) -> Payload:
    """The payload of a piece of a final output: tensor `audio`, scalar `sample_rate_hz`."""
    data = samples(codes, first_frame, frames, options)
    shape = _SHAPES[options.shape](len(data) // ITEM_BYTES[options.dtype])
    tensor = Tensor(name="audio", dtype=options.dtype, shape=shape, data=memoryview(data))
    return Payload(tensors=(tensor,), meta=(("sample_rate_hz", options.sample_rate_hz),))
