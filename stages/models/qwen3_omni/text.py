"""From token ids to text, piece by piece, so that the pieces joined are exactly the text of all ids.

A character whose bytes are spread over several tokens is held back until it is complete. Special tokens have no text.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
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
        self._bytes: dict[int, bytes] = {}  # of the tokens that have occurred

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are spelled out."""
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def name(self, token: int) -> str:
        """How a special token is spelled."""
        return str(self._tokenizer.convert_ids_to_tokens(token))

    def bytes_of(self, token: int) -> bytes:
        """Empty for special tokens."""
        if (known := self._bytes.get(token)) is None:
            known = self._bytes[token] = self._spell(token)
        return known

    def _spell(self, token: int) -> bytes:
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

    def _spell(self, token: int) -> bytes:
        return b"" if token in self._own_ids else super()._spell(ANSWER_IDS[token % len(ANSWER_IDS)])


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

    @property
    def pending(self) -> bool:
        """Whether bytes of an incomplete character are held back."""
        return bool(self._utf8.getstate()[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What became certain with one token: `text`, and how many `tokens`, of those that were held back and this one, are
    part of the answer. `stopped`: the answer has ended before a stop string."""

    text: str
    tokens: int
    stopped: bool = False


class Answer:
    """One answer, cut exactly before the first complete one of the `stop` strings, wherever its tokens begin and end.

    What may yet turn out to be part of a stop string is held back, and so are its tokens. A token that reaches over the
    cut is part of the answer if some of its text is.
    """

    def __init__(self, codec: TokenCodec, stop: Sequence[str] = ()) -> None:
        self._decoder = TextDecoder(codec)
        self._stop = tuple(stop)
        self._held = ""
        self._begins: list[int] = []  # where the text of each held token begins, as an index into what is held

    def push(self, token: int) -> Piece:
        piece = self._decoder.push(token)
        if not self._stop:
            return Piece(text=piece, tokens=1)
        self._begins.append(len(self._held))
        return self._release(piece, over=False)

    def finish(self) -> Piece:
        """What was held back, once no token will follow."""
        piece = self._decoder.finish()
        return self._release(piece, over=True) if self._stop else Piece(text=piece, tokens=0)

    def _release(self, piece: str, *, over: bool) -> Piece:
        searched = len(self._held)
        self._held += piece
        cut = self._cut(searched)
        if cut is not None:
            kept = sum(begin < cut for begin in self._begins)
            return Piece(text=self._held[:cut], tokens=kept, stopped=True)
        free = len(self._held) if over else len(self._held) - self._suspicious()
        whole = over or (free == len(self._held) and not self._decoder.pending)
        released = len(self._begins) if whole else sum(begin < free for begin in self._begins)
        text, self._held = self._held[:free], self._held[free:]
        self._begins = [begin - free for begin in self._begins[released:]]
        return Piece(text=text, tokens=released)

    def _cut(self, searched: int) -> int | None:
        """Where the first complete stop string begins: first is whose last character comes first. None if there is
        none; there is none within the first `searched` characters."""
        found = []
        for stop in self._stop:
            at = self._held.find(stop, max(0, searched - len(stop) + 1))
            if at >= 0:
                found.append((at + len(stop), at))
        return min(found)[1] if found else None

    def _suspicious(self) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        return max(
            size
            for stop in self._stop
            for size in range(min(len(stop) - 1, len(self._held)), -1, -1)
            if self._held.endswith(stop[:size])
        )
