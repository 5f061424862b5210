"""Where a step's tokens lie follows from the blocks that each request was given, in the order in which it got them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.runners.kv_cache import BlockTables, PagedCache, Span, block_bytes

CPU = torch.device("cpu")


def test_layout_of_chunks_and_single_tokens() -> None:
    tables = BlockTables(4)
    tables.extend(10, [5])
    tables.extend(11, [0, 3])
    tables.extend(10, [2, 7])
    layout = tables.layout([Span(10, 3, 6), Span(11, 6, 1)])
    assert layout.slots.tolist() == [23, 8, 9, 10, 11, 28, 14]
    assert layout.query_starts.tolist() == [0, 6, 7]
    assert layout.kv_lengths.tolist() == [9, 7]
    assert layout.block_tables[0].tolist() == [5, 2, 7]
    assert layout.block_tables[1].tolist()[:2] == [0, 3]
    assert layout.max_query == 6
    assert (layout.slots.dtype, layout.block_tables.dtype) == (torch.int64, torch.int32)


def test_a_row_beyond_its_blocks_is_an_error() -> None:
    tables = BlockTables(4)
    tables.extend(1, [0])
    assert tables.layout([Span(1, 3, 1)]).slots.tolist() == [3]
    with pytest.raises(ValueError, match="request 1 reaches token 5, but has KV blocks for 4"):
        tables.layout([Span(1, 4, 1)])
    tables.drop(1)
    with pytest.raises(ValueError, match="for 0"):
        tables.layout([Span(1, 0, 1)])


def test_a_dropped_request_starts_anew() -> None:
    tables = BlockTables(2)
    tables.extend(1, [4, 5])
    tables.drop(1)
    tables.drop(1)
    tables.extend(1, [9])
    assert tables.layout([Span(1, 0, 2)]).slots.tolist() == [18, 19]


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_any_order_of_growth(data: st.DataObject) -> None:
    """Against plain lists: many requests, long tables, requests that come and go."""
    block_tokens = data.draw(st.sampled_from([1, 3, 16]))
    tables, plain, next_block = BlockTables(block_tokens), {}, 0
    for _ in range(data.draw(st.integers(1, 40))):
        uid = data.draw(st.integers(0, 20))
        if data.draw(st.integers(0, 9)) == 0:
            tables.drop(uid)
            plain.pop(uid, None)
            continue
        count = data.draw(st.integers(0, 30))
        tables.extend(uid, range(next_block, next_block + count))
        if count:
            plain.setdefault(uid, []).extend(range(next_block, next_block + count))
        next_block += count
    spans = []
    for uid, blocks in plain.items():
        end = data.draw(st.integers(1, len(blocks) * block_tokens))
        tokens = data.draw(st.integers(1, end))
        spans.append(Span(uid, end - tokens, tokens))
    if spans:
        layout = tables.layout(spans)
        expected = [
            plain[s.uid][place // block_tokens] * block_tokens + place % block_tokens
            for s in spans
            for place in range(s.start, s.start + s.tokens)
        ]
        assert layout.slots.tolist() == expected
        assert layout.max_query == max(span.tokens for span in spans)


def test_the_sink_is_behind_the_scheduler_s_blocks() -> None:
    cache = PagedCache(
        layers=2, blocks=3, block_tokens=4, kv_heads=2, head_dim=8, dtype=torch.bfloat16, device=CPU
    )  # fmt: skip
    assert cache.sink == 3
    assert len(cache.keys[0]) == 4
    one = block_bytes(layers=2, block_tokens=4, kv_heads=2, head_dim=8, dtype=torch.bfloat16)
    assert cache.keys.nbytes + cache.values.nbytes == 4 * one
