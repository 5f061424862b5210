"""Compares what the header of a chunked sound file (WAV, RF64, AIFF) declares with the bytes that are there.

libsndfile reads a cut file without a word and hands out what is left; here that is an error. It decodes
nothing.
"""

from dataclasses import dataclass
from typing import Literal

# A writer that cannot seek back leaves a huge placeholder for the length (0xFFFFFFFF, 0x7FFFF000, ...).
_OPEN_LENGTH_BYTES = 0x7FFFF000


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleChunk:
    """The chunk that holds the samples. `declared_bytes` is None where the writer left the length open."""

    declared_bytes: int | None
    present_bytes: int


def find_sample_chunk(data: bytes) -> SampleChunk | None:
    """Walks the chunks of `data`; None where no chunk holds samples.

    Layouts: RIFF and WAVE (Microsoft and IBM, 1991), RF64 (EBU Tech 3306), AIFF 1.3 (Apple).
    """
    order: Literal["big", "little"] = "big" if data[:4] == b"FORM" else "little"
    wanted = b"SSND" if data[:4] == b"FORM" else b"data"
    long_bytes: int | None = None
    position = 12
    while position + 8 <= len(data):
        name = data[position : position + 4]
        size = int.from_bytes(data[position + 4 : position + 8], order)
        position += 8
        if name == b"ds64":
            long_bytes = int.from_bytes(data[position + 8 : position + 16], "little")
        if name == wanted:
            if size == 0xFFFFFFFF and long_bytes is not None:
                declared: int | None = long_bytes
            else:
                declared = None if size >= _OPEN_LENGTH_BYTES else size
            return SampleChunk(declared_bytes=declared, present_bytes=len(data) - position)
        position += size + size % 2
    return None
