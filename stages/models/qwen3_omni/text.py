"""From token ids to text, piece by piece, so that the pieces joined are exactly the text of all ids.

A character whose bytes are spread over several tokens is held back until it is complete. Special tokens have no text.
"""

import codecs
from typing import Any

from stages.models.qwen3_omni.tiny_tokenizer import ANSWER_IDS, BYTE_SYMBOLS, TOKEN_IDS

_BYTES = {symbol: byte for byte, symbol in enumerate(BYTE_SYMBOLS)}


class TokenCodec:
    """A byte-level tokenizer, both ways: text to ids, and the bytes that each id stands for."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # Special tokens have no text; added tokens that are not special are spelled out.
        self._added = {
            token: b"" if entry.special else entry.content.encode()
            for token, entry in tokenizer.added_tokens_decoder.items()
        }

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are spelled out."""
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def name(self, token: int) -> str:
        """How a special token is spelled."""
        return str(self._tokenizer.convert_ids_to_tokens(token))

    def bytes_of(self, token: int) -> bytes:
        """Empty for special tokens."""
        if token in self._added:
            return self._added[token]
        symbols = self._tokenizer.convert_ids_to_tokens(token)
        # Ids beyond the tokenizer exist in the embedding table; they have no text.
        return b"" if symbols is None else bytes(_BYTES[symbol] for symbol in symbols)


class StandInCodec(TokenCodec):
    """The tiny tokenizer for a model with ids of its own: role names and special tokens get the ids that the model's
    configuration gives them, and an id that means nothing is read as one of the tiny vocabulary's words."""

    def __init__(self, tokenizer: Any, config: Any) -> None:
        super().__init__(tokenizer)
        thinker = config.thinker_config
        self._model_ids = {
            TOKEN_IDS["system"]: config.system_token_id,
            TOKEN_IDS["user"]: config.user_token_id,
            TOKEN_IDS["assistant"]: config.assistant_token_id,
            TOKEN_IDS["<|im_start|>"]: config.im_start_token_id,
            TOKEN_IDS["<|im_end|>"]: config.im_end_token_id,
            TOKEN_IDS["<|image_pad|>"]: thinker.image_token_id,
            TOKEN_IDS["<|video_pad|>"]: thinker.video_token_id,
            TOKEN_IDS["<|audio_pad|>"]: thinker.audio_token_id,
            TOKEN_IDS["<|audio_start|>"]: thinker.audio_start_token_id,
            TOKEN_IDS["<|vision_start|>"]: thinker.vision_start_token_id,
        }
        self._own_ids = {model: own for own, model in self._model_ids.items()}

    def encode(self, text: str) -> list[int]:
        return [self._model_ids.get(token, token) for token in super().encode(text)]

    def name(self, token: int) -> str:
        return super().name(self._own_ids.get(token, token))

    def bytes_of(self, token: int) -> bytes:
        if token in self._own_ids:
            return b""
        return super().bytes_of(ANSWER_IDS[token % len(ANSWER_IDS)])


class TextDecoder:
    """Decodes one answer. Bytes that are no UTF-8 become U+FFFD, as in one call for all ids."""

    def __init__(self, codec: TokenCodec) -> None:
        self._codec = codec
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that is complete with this token; often empty, as for a special token."""
        return self._utf8.decode(self._codec.bytes_of(token))

    def finish(self) -> str:
        """What was held back, once no token will follow."""
        return self._utf8.decode(b"", final=True)
