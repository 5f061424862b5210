"""Compares what the header of a chunked sound file (WAV, RF64, AIFF) declares with the bytes that are there.

libsndfile reads a cut file without a word and hands out what is left; here that is an error. It decodes
nothing.
"""

from typing import Literal

# A writer that cannot seek back leaves a huge placeholder for the length (0xFFFFFFFF, 0x7FFFF000, ...).
_OPEN_LENGTH_BYTES = 0x7FFFF000


def sample_bytes(data: bytes) -> tuple[int | None, int] | None:
    """What the chunk that holds the samples declares (None where the writer left the length open), and what is there.

    Walks the chunks of `data`; None where no chunk holds samples.

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
            declared = None if size >= _OPEN_LENGTH_BYTES else size
            return long_bytes if size == 0xFFFFFFFF and long_bytes is not None else declared, len(data) - position
        position += size + size % 2
    return None
