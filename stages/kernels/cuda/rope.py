"""Between projection and attention: norms of query and key heads, rotary positions, and the write into the cache.

Rows of one token need this only beside longer ones: alone, `attention.decode` does it on the way.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stages.kernels.cuda.launch import programs
from stages.kernels.cuda.tiles import power_of_two


@triton.jit
def summed(parts, at, stride, inside, SPLIT: tl.constexpr):
    """The sum over the parts, float32."""
    total = tl.load(parts + at, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, SPLIT):
        total += tl.load(parts + part * stride + at, mask=inside, other=0.0).to(tl.float32)
    return total


@triton.jit
def normed_and_turned(
    low,
    high,
    cos_low,
    cos_high,
    sin_low,
    sin_high,
    norm,
    eps,
    axis: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Head halves [.., BLOCK_H], zeros behind HALF: RMS norm over both, then the rotation; `axis` is the last one."""
    h = tl.arange(0, BLOCK_H)
    scale = tl.rsqrt((tl.sum(low * low, axis) + tl.sum(high * high, axis)) / (2 * HALF) + eps)
    low_weight = tl.load(norm + h, mask=h < HALF, other=0.0).to(tl.float32)
    high_weight = tl.load(norm + HALF + h, mask=h < HALF, other=0.0).to(tl.float32)
    if axis == 1:
        scale, low_weight, high_weight = scale[:, None], low_weight[None, :], high_weight[None, :]
        cos_low, cos_high, sin_low, sin_high = cos_low[None, :], cos_high[None, :], sin_low[None, :], sin_high[None, :]
    low = low * scale * low_weight
    high = high * scale * high_weight
    return low * cos_low - high * sin_low, high * cos_high + low * sin_high


@triton.jit
def _rope(
    parts,
    q_norm,
    k_norm,
    cos,
    sin,
    slots,
    q_out,
    k_cache,
    v_cache,
    eps,
    stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_G: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (token, head of the cache): the query heads of its group, and its key and value."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    h = tl.arange(0, HALF)
    g = tl.arange(0, BLOCK_G)
    D: tl.constexpr = 2 * HALF
    HEADS: tl.constexpr = KV_HEADS * GROUP
    base = token * ((HEADS + 2 * KV_HEADS) * D)
    cos_low = tl.load(cos + token * D + h).to(tl.float32)
    cos_high = tl.load(cos + token * D + HALF + h).to(tl.float32)
    sin_low = tl.load(sin + token * D + h).to(tl.float32)
    sin_high = tl.load(sin + token * D + HALF + h).to(tl.float32)

    at = base + (head * GROUP + g)[:, None] * D + h[None, :]
    inside = (g < GROUP)[:, None]
    low = summed(parts, at, stride, inside, SPLIT)
    high = summed(parts, at + HALF, stride, inside, SPLIT)
    low, high = normed_and_turned(low, high, cos_low, cos_high, sin_low, sin_high, q_norm, eps, 1, HALF, HALF)
    to = q_out + (token * HEADS + head * GROUP + g)[:, None] * D + h[None, :]
    tl.store(to, low.to(q_out.dtype.element_ty), mask=inside)
    tl.store(to + HALF, high.to(q_out.dtype.element_ty), mask=inside)

    key = base + (HEADS + head) * D + h
    whole = h < HALF
    left = summed(parts, key, stride, whole, SPLIT)
    right = summed(parts, key + HALF, stride, whole, SPLIT)
    left, right = normed_and_turned(left, right, cos_low, cos_high, sin_low, sin_high, k_norm, eps, 0, HALF, HALF)
    place = (tl.load(slots + token) * KV_HEADS + head) * D + h
    tl.store(k_cache + place, left.to(k_cache.dtype.element_ty))
    tl.store(k_cache + place + HALF, right.to(k_cache.dtype.element_ty))
    value = key + KV_HEADS * D
    tl.store(v_cache + place, summed(parts, value, stride, whole, SPLIT).to(v_cache.dtype.element_ty))
    tl.store(v_cache + place + HALF, summed(parts, value + HALF, stride, whole, SPLIT).to(v_cache.dtype.element_ty))


def rope_and_cache(
    parts: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Queries [T, heads, dim], normed and rotated; keys, likewise, and values go into the caches' `slots`.

    Queries, keys and values are the sum of `parts` [S, T, (heads + 2 * kv_heads) * dim], contiguous; `q_norm`, `k_norm`
    [dim]; `cos`, `sin` [T, dim]; `slots` [T] int64 count tokens of the caches [blocks, block_tokens, kv_heads, dim].
    Rounded once.
    """
    split, rows, width = parts.shape
    _, _, kv_heads, dim = k_cache.shape
    heads = width // dim - 2 * kv_heads
    out = torch.empty((rows, heads, dim), dtype=k_cache.dtype, device=parts.device)
    programs(_rope, rows, kv_heads)(
        parts,
        q_norm,
        k_norm,
        cos,
        sin,
        slots,
        out,
        k_cache,
        v_cache,
        eps,
        parts.stride(0),
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        HALF=dim // 2,
        SPLIT=split,
        BLOCK_G=power_of_two(heads // kv_heads),
        num_warps=2,
    )
    return out
