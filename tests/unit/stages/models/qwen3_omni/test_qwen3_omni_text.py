"""Text comes piece by piece, and the pieces joined are the tokenizer's own text."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from stages.models.qwen3_omni.text import TextDecoder, TokenCodec
from stages.models.qwen3_omni.tiny_tokenizer import VOCABULARY_SIZE


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> object:
    return AutoTokenizer.from_pretrained(tiny_folder)


def decode(tokenizer, ids: list[int]) -> list[str]:
    decoder = TextDecoder(TokenCodec(tokenizer))
    return [*(decoder.push(token) for token in ids), decoder.finish()]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, VOCABULARY_SIZE - 1), max_size=30))
def test_any_ids(tokenizer, ids: list[int]) -> None:
    known = [token for token in ids if token < len(tokenizer)]
    assert "".join(decode(tokenizer, ids)) == tokenizer.decode(known, skip_special_tokens=True)


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=20))
def test_no_character_is_torn(tokenizer, text: str) -> None:
    pieces = decode(tokenizer, TokenCodec(tokenizer).encode(text))
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


def test_a_character_of_several_tokens_comes_with_its_last(tokenizer) -> None:
    ids = TokenCodec(tokenizer).encode("🙂")
    assert len(ids) == 4
    assert decode(tokenizer, ids) == ["", "", "", "🙂", ""]
