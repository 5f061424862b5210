"""The tokenizer of the tiny checkpoint: byte-level BPE, written as the JSON that the tokenizers library reads.

Any text survives (every byte is a token); the role names are one token each, as the talker's prompt needs them; a short
list of words with a leading space is what the model may answer with, so that an answer is readable. Must not import
torch, transformers or tokenizers.
"""

from typing import Any

_ROLES = ("system", "user", "assistant")
# What the tiny model can say. Each word costs about four entries of the vocabulary (one for every prefix).
_SMALL = "the and of in on to with from under over a no yes one two ten red blue green old new low high warm cold slow"
_THINGS = (
    "sea sun sky moon rain wind tree leaf rock sand bird fish boat road hill lake star snow fire door lamp song bell"
)
_VERBS = "is was has saw went came gave took made kept sang fell rose turned"
_WORDS = (*_SMALL.split(), *_THINGS.split(), *_VERBS.split())
PUNCTUATION = (".", ",")

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
)
# How Qwen's tokenizers cut text into words before the merges, from `tokenizer.json` of the published checkpoints.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_symbols() -> tuple[str, ...]:
    """The printable character that stands for each byte: itself where it is visible, else one past U+00FF."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in visible else next(spare)) for byte in range(256))


BYTE_SYMBOLS = _byte_symbols()
"""What stands for each byte in the vocabulary of a byte-level tokenizer."""


def _symbols(text: str) -> list[str]:
    return [BYTE_SYMBOLS[byte] for byte in text.encode()]


def _build() -> tuple[dict[str, int], list[list[str]]]:
    """Vocabulary and merges. A word is merged from left to right; words with a space come first, so that a pair inside
    one of them (`us` in ` house`) never wins over the pair that begins it."""
    tokens = list(BYTE_SYMBOLS)
    known = set(tokens)
    merges: list[list[str]] = []
    for word in [f" {word}" for word in _WORDS] + list(_ROLES):
        first, *rest = _symbols(word)
        for symbol in rest:
            joined = first + symbol
            if joined not in known:
                known.add(joined)
                tokens.append(joined)
                merges.append([first, symbol])
            first = joined
    return {token: index for index, token in enumerate(tokens)}, merges


_VOCABULARY, _MERGES = _build()

TOKEN_IDS: dict[str, int] = {
    **{role: _VOCABULARY[role] for role in _ROLES},
    **{token: len(_VOCABULARY) + index for index, token in enumerate(SPECIAL_TOKENS)},
}
"""Ids of the role names and of the special tokens, by their text."""

ANSWER_IDS: tuple[int, ...] = tuple(
    sorted(_VOCABULARY["".join(_symbols(text))] for text in [f" {word}" for word in _WORDS] + list(PUNCTUATION))
)
"""Ids of the words and marks that the tiny model may answer with."""

# Rounded up, so that ids beyond the tokenizer exist as they do in the published embedding table.
VOCABULARY_SIZE = -(-(len(_VOCABULARY) + len(SPECIAL_TOKENS)) // 64) * 64


def _added(token: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": token, **flags, "special": True}


def tokenizer_json() -> dict[str, Any]:
    """`tokenizer.json`."""
    return {
        "version": "1.0",
        "added_tokens": [{"id": TOKEN_IDS[token], **_added(token)} for token in SPECIAL_TOKENS],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": _SPLIT}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            ],
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE",
            "vocab": _VOCABULARY,
            "merges": _MERGES,
        },
    }


def tokenizer_config() -> dict[str, Any]:
    """`tokenizer_config.json`."""
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "model_max_length": 8192,
        "extra_special_tokens": {
            "image_token": "<|image_pad|>",
            "audio_token": "<|audio_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
        "added_tokens_decoder": {str(TOKEN_IDS[token]): _added(token) for token in SPECIAL_TOKENS},
    }
