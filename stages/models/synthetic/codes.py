"""Codec frames of the synthetic talker: four codes of 64, from the text so far, the seed and the number of the frame.

Frame n depends on the tokens up to token n (all of them, once there are no more), so that a talker which is fed token
by token computes what one fed with the whole text does.
"""

import struct
import zlib

CODE_GROUPS = 4
CODEBOOK_SIZE = 64
FRAMES_A_TOKEN = 3  # where `frames` is not given

_KEY = struct.Struct("<QIIII")
_MASK = CODEBOOK_SIZE - 1


def text_so_far(before: int, token: bytes | bytearray) -> int:
    """The checksum of the text once `token` (a row of `tokens.pack`) has come; `before` is 0 for the first."""
    return zlib.crc32(token, before)


def frame_codes(stage: str, text: int, seed: int, choice: int, frame: int) -> bytes:
    """uint8 [4]. `text` is `text_so_far` at this frame, `stage` the stage that speaks."""
    key = _KEY.pack(seed & 0xFFFF_FFFF_FFFF_FFFF, choice, frame, text, zlib.crc32(stage.encode()))
    value = zlib.crc32(key)
    return bytes((value & _MASK, value >> 6 & _MASK, value >> 12 & _MASK, value >> 18 & _MASK))
