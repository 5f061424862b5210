"""Text comes piece by piece, and the pieces joined are the tokenizer's own text."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from stages.models.qwen3_omni.text import Answer, TextDecoder, TokenCodec
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


def answer(tokenizer, ids: list[int], stop: list[str]) -> tuple[str, int, bool, list[int]]:
    """The whole text, how many of the tokens are part of it, whether it was stopped, and tokens released a push."""
    taken = Answer(TokenCodec(tokenizer), stop)
    text, counts = "", []
    for token in ids:
        piece = taken.push(token)
        text, counts = text + piece.text, [*counts, piece.tokens]
        if piece.stopped:
            return text, sum(counts), True, counts
    piece = taken.finish()
    return text + piece.text, sum(counts) + piece.tokens, piece.stopped, counts


def cut(text: str, stop: list[str]) -> str | None:
    """By definition: reading character by character, before the first stop string that is complete."""
    for end in range(1, len(text) + 1):
        if ending := [s for s in stop if text[:end].endswith(s)]:
            return text[: end - max(map(len, ending))]
    return None


@settings(deadline=None, max_examples=300)
@given(
    st.text("ab🙂é\ufffd", max_size=14),
    st.lists(st.text("ab🙂é\ufffd", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_strings_cut_exactly(tokenizer, text: str, stop: list[str]) -> None:
    ids = TokenCodec(tokenizer).encode(text)
    found, tokens, stopped, _ = answer(tokenizer, ids, stop)
    expected = cut(text, stop)
    assert stopped == (expected is not None)
    assert found == (text if expected is None else expected)
    # The tokens are the fewest that hold the text.
    decoded = ["".join(decode(tokenizer, ids[:count])[:-1]) for count in range(len(ids) + 1)]
    if expected is None:
        assert tokens == len(ids)
    else:
        assert tokens == next(count for count, whole in enumerate(decoded) if whole.startswith(expected))


def test_a_token_goes_on_as_soon_as_it_is_certain(tokenizer) -> None:
    ids = TokenCodec(tokenizer).encode("abcab")
    assert len(ids) == 5
    assert answer(tokenizer, ids, ["abd"]) == ("abcab", 5, False, [0, 0, 3, 0, 0])
    assert answer(tokenizer, ids, ["ca"]) == ("ab", 2, True, [1, 1, 0, 0])


def test_special_tokens_go_with_what_is_before_them(tokenizer) -> None:
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    a, b = TokenCodec(tokenizer).encode("a") + TokenCodec(tokenizer).encode("b")
    assert answer(tokenizer, [end, a, end, b], ["ab"]) == ("", 1, True, [1, 0, 0, 0])
    assert answer(tokenizer, [a, end], ["ab"]) == ("a", 2, False, [0, 0])


def test_the_bytes_of_an_unfinished_character_wait(tokenizer) -> None:
    ids = TokenCodec(tokenizer).encode("🙂")
    assert answer(tokenizer, ids, ["🙂"]) == ("", 0, True, [0, 0, 0, 0])
    assert answer(tokenizer, ids, ["x"]) == ("🙂", 4, False, [0, 0, 0, 4])
    assert answer(tokenizer, ids[:2], ["x"]) == ("\ufffd", 2, False, [0, 0])
