"""The synthetic tokenizer: pieces of text whose concatenation is the text, whatever the language."""

import re
import zlib
from array import array

TOKEN_WIDTH = 8  # code points, at most, of a token
TOKEN_BYTES = 4 * TOKEN_WIDTH
_PAD = -1
_PIECE = re.compile(rf"\s?\S{{1,{TOKEN_WIDTH - 1}}}|\s")


def tokenize(text: str) -> list[str]:
    """A piece is up to seven characters of a word, with one blank before it, or a blank by itself."""
    return _PIECE.findall(text)


def token_id(token: str) -> int:
    """There is no vocabulary: a checksum of 31 bits."""
    return zlib.crc32(token.encode()) >> 1


def pack(tokens: list[str]) -> bytes:
    """int32 [tokens, 8]: each token's code points, then -1."""
    packed = array("i")
    for token in tokens:
        packed.extend(map(ord, token))
        packed.extend([_PAD] * (TOKEN_WIDTH - len(token)))
    return packed.tobytes()
