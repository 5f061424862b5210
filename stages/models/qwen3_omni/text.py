"""From token ids to text, piece by piece, so that the pieces joined are exactly the text of all ids.

A character whose bytes are spread over several tokens is held back until it is complete. Special tokens have no text.
"""

import codecs
from typing import Any

from stages.models.qwen3_omni.tiny_tokenizer import BYTE_SYMBOLS

_BYTES = {symbol: byte for byte, symbol in enumerate(BYTE_SYMBOLS)}


class TokenBytes:
    """The bytes that each id of a byte-level tokenizer stands for."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        self._added = {token: str(entry) for token, entry in tokenizer.added_tokens_decoder.items()}

    def __getitem__(self, token: int) -> bytes:
        if token in self._special:
            return b""
        if token in self._added:
            return self._added[token].encode()
        symbols = self._tokenizer.convert_ids_to_tokens(token)
        # Ids beyond the tokenizer exist in the embedding table; they have no text.
        return b"" if symbols is None else bytes(_BYTES[symbol] for symbol in symbols)


class TextDecoder:
    """Decodes one answer. Bytes that are no UTF-8 become U+FFFD, as in one call for all ids."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that is complete with this token; often empty, as for a special token."""
        return self._utf8.decode(self._token_bytes[token])

    def finish(self) -> str:
        """What was held back, once no token will follow."""
        return self._utf8.decode(b"", final=True)
