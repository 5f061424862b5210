"""Packed rows over a paged cache give each row what it would get alone over its own contiguous keys and values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.kernels.attention import paged_attention
from stages.runners.kv_cache import BlockTables, PagedCache, Span

CPU = torch.device("cpu")
HEADS, DIM = 4, 8


def alone(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention of the last len(q) tokens of one sequence, in float64 and spelled out."""
    group = q.shape[1] // keys.shape[1]
    out = torch.empty_like(q, dtype=torch.float64)
    for token in range(len(q)):
        seen = len(keys) - len(q) + token + 1
        for head in range(q.shape[1]):
            scores = keys[:seen, head // group].double() @ q[token, head].double() * scale
            out[token, head] = scores.softmax(0) @ values[:seen, head // group].double()
    return out.float()


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=5),
    kv_heads=st.sampled_from([1, 2, 4]),
    block_tokens=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 1000),
)
def test_equal_to_each_row_alone(rows: list[tuple[int, int]], kv_heads: int, block_tokens: int, seed: int) -> None:
    """`rows` are (tokens before, tokens of the step)."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-(before + tokens) // block_tokens) for before, tokens in rows]
    blocks = torch.randperm(sum(needed), generator=generator).tolist()
    cache = PagedCache(
        layers=2, blocks=len(blocks), block_tokens=block_tokens, kv_heads=kv_heads, head_dim=DIM,
        dtype=torch.float32, device=CPU,
    )  # fmt: skip
    # Whatever lies behind a row's end must not matter.
    cache.keys.normal_(generator=generator), cache.values.normal_(generator=generator)
    tables = BlockTables(block_tokens)
    sequences = []
    for uid, (before, tokens) in enumerate(rows):
        tables.extend(uid, [blocks.pop() for _ in range(needed[uid])])
        keys, values = torch.randn(2, before + tokens, kv_heads, DIM, generator=generator)
        sequences.append((keys, values))
        if before:
            cache.write(1, keys[:before], values[:before], tables.layout([Span(uid, 0, before)]).slots)
    layout = tables.layout([Span(uid, before, tokens) for uid, (before, tokens) in enumerate(rows)])
    new = [tuple(part[-tokens:] for part in pair) for pair, (_, tokens) in zip(sequences, rows, strict=True)]
    cache.write(1, torch.cat([keys for keys, _ in new]), torch.cat([values for _, values in new]), layout.slots)
    q = torch.randn(sum(tokens for _, tokens in rows), HEADS, DIM, generator=generator)
    out = paged_attention(q, cache.keys[1], cache.values[1], layout, DIM**-0.5)
    begin = 0
    for (keys, values), (_, tokens) in zip(sequences, rows, strict=True):
        expected = alone(q[begin : begin + tokens], keys, values, DIM**-0.5)
        torch.testing.assert_close(out[begin : begin + tokens], expected, rtol=0, atol=2e-6)
        begin += tokens


def test_a_step_padded_to_a_fixed_size_leaves_the_rows_alone() -> None:
    """Padding rows have one token in the block that belongs to nobody."""
    cache = PagedCache(
        layers=1, blocks=3, block_tokens=4, kv_heads=2, head_dim=DIM, dtype=torch.float32, device=CPU
    )  # fmt: skip
    tables = BlockTables(4)
    tables.extend(7, [2, 0])
    tables.extend(8, [cache.sink])
    keys, values = torch.randn(2, 6, 2, DIM)
    cache.write(0, keys, values, tables.layout([Span(7, 0, 6)]).slots)
    q = torch.randn(3, HEADS, DIM)
    padded = tables.layout([Span(7, 5, 1), Span(8, 0, 1), Span(8, 0, 1)])
    assert padded.slots.tolist() == [1, 12, 12]
    out = paged_attention(q, cache.keys[0], cache.values[0], padded, 0.5)
    torch.testing.assert_close(out[:1], alone(q[:1], keys, values, 0.5), rtol=0, atol=2e-6)
    assert out.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_result_has_the_dtype_of_the_query(dtype: torch.dtype) -> None:
    cache = PagedCache(layers=1, blocks=2, block_tokens=4, kv_heads=2, head_dim=DIM, dtype=dtype, device=CPU)
    tables = BlockTables(4)
    tables.extend(0, [0])
    tables.extend(1, [1])
    q = torch.randn(4, HEADS, DIM).to(dtype)
    layout = tables.layout([Span(0, 0, 3), Span(1, 2, 1)])
    assert paged_attention(q, cache.keys[0], cache.values[0], layout, 1.0).dtype == dtype
