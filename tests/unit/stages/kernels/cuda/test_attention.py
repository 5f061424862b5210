"""Paged attention is what `stages.kernels.attention` computes; single tokens get norms and rotation as well."""

import pytest
import torch

from stages.kernels.attention import paged_attention as reference
from stages.kernels.cuda.attention import decode, paged_attention
from stages.kernels.cuda.rope import rope_and_cache
from stages.runners.kv_cache import BlockTables, PagedCache, Span, StepLayout

HEADS = [(4, 2, 16), (3, 1, 16), (16, 2, 32)]


def filled(lengths: list[int], kv_heads: int, dim: int, device: torch.device) -> tuple[PagedCache, BlockTables]:
    """A cache of noise, in which rows have their blocks in a shuffled order."""
    needed = [-(-length // 16) for length in lengths]
    cache = PagedCache(
        layers=1, blocks=sum(needed), block_tokens=16, kv_heads=kv_heads, head_dim=dim, dtype=torch.float32,
        device=device,
    )  # fmt: skip
    cache.keys.normal_(), cache.values.normal_()
    tables, free = BlockTables(16), torch.randperm(sum(needed)).tolist()
    for uid, blocks in enumerate(needed):
        tables.extend(uid, [free.pop() for _ in range(blocks)])
    return cache, tables


def layout_of(tables: BlockTables, lengths: list[int], tokens: list[int], device: torch.device) -> StepLayout:
    spans = [Span(uid, length - new, new) for uid, (length, new) in enumerate(zip(lengths, tokens, strict=True))]
    return tables.layout(spans).to(device)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), HEADS)
@pytest.mark.parametrize(
    ("lengths", "tokens"),
    [([5, 130, 64], [1, 1, 1]), ([200], [1]), ([90], [33]), ([20, 77, 5, 150], [20, 1, 1, 40]), ([9, 3], [1, 2])],
)
def test_equal_to_the_reference(
    lengths: list[int], tokens: list[int], heads: int, kv_heads: int, dim: int, device: torch.device
) -> None:
    cache, tables = filled(lengths, kv_heads, dim, device)
    layout = layout_of(tables, lengths, tokens, device)
    q = torch.randn(sum(tokens), heads, dim, device=device)
    found = paged_attention(q, cache.keys[0], cache.values[0], layout, dim**-0.5)
    expected = reference(q, cache.keys[0], cache.values[0], layout, dim**-0.5)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), HEADS)
@pytest.mark.parametrize("lengths", [[7], [5, 130, 64, 1]])
def test_norms_rotation_and_cache(
    lengths: list[int], heads: int, kv_heads: int, dim: int, device: torch.device
) -> None:
    """Spelled out for `rope_and_cache`; `decode` is the two steps at once. One row more is padding."""
    rows = len(lengths) + 1
    cache, tables = filled(lengths, kv_heads, dim, device)
    tables.extend(len(lengths), [cache.sink])
    layout = layout_of(tables, [*lengths, 1], [1] * rows, device)
    layout.kv_lengths[-1] = 0
    parts = torch.randn(2, rows, (heads + 2 * kv_heads) * dim, device=device)
    q_norm, k_norm = torch.rand(2, dim, device=device) + 0.5
    angles = torch.randn(rows, dim // 2, device=device).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()

    def turned(x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * norm
        low, high = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat((-high, low), -1) * sin[:, None]

    q, k, v = parts.sum(0).view(rows, -1, dim).split([heads, kv_heads, kv_heads], 1)
    keys, values = cache.keys[0].clone(), cache.values[0].clone()
    found = rope_and_cache(parts, q_norm, k_norm, cos, sin, layout.slots, keys, values, 1e-6)
    torch.testing.assert_close(found, turned(q, q_norm), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(keys.flatten(0, 1)[layout.slots], turned(k, k_norm), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(values.flatten(0, 1)[layout.slots], v, rtol=1e-4, atol=1e-5)

    attended = decode(parts, q_norm, k_norm, cos, sin, cache.keys[0], cache.values[0], layout, 1e-6, dim**-0.5)
    expected = paged_attention(found, keys, values, layout, dim**-0.5)
    torch.testing.assert_close(attended[:-1], expected[:-1], rtol=1e-4, atol=1e-5)
    assert (attended[-1] == 0).all()
    live = layout.slots[:-1]
    torch.testing.assert_close(cache.keys[0].flatten(0, 1)[live], keys.flatten(0, 1)[live])
    torch.testing.assert_close(cache.values[0].flatten(0, 1)[live], values.flatten(0, 1)[live])
