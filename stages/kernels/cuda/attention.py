"""Attention over a paged cache in one packed step: rows of one token split over their length, longer ones in tiles.

Query heads that share a key-value head form one tile, so the cache is read once and never expanded. Keys and values are
found through block tables. Where all rows have one token, head norms, rotation and the write into the cache are done on
the way (`decode`); else `rope` has done them before (`paged_attention`).
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stages.kernels.cuda.launch import programs
from stages.kernels.cuda.rope import normed_and_turned, summed
from stages.kernels.cuda.tiles import PRECISION, decode_splits, decode_tiles, power_of_two, prefill_tiles
from stages.runners.kv_cache import StepLayout

# Up to this many tokens in the longest row, rows of one token share its kernel.
_FEW = 8


@triton.jit(do_not_specialize=["table_width"])
def _decode(
    q,
    q_norm,
    k_norm,
    cos,
    sin,
    slots,
    k_cache,
    v_cache,
    starts,
    lengths,
    tables,
    out,
    parts,
    sums,
    eps,
    scale,
    stride,
    table_width,
    RAW: tl.constexpr,
    SPLIT: tl.constexpr,
    TOKENS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    SHARES: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ALLOW: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row, head of the cache, share of its tokens). Writes `out`, or with several shares a partial result and
    the logarithm of its sum. With RAW, `q` are the projection's parts, and the row's own token is not in the cache yet.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    head = tl.program_id(1)
    token = tl.load(starts + row)
    if tl.load(starts + row + 1) - token == 1:
        D: tl.constexpr = 2 * HALF
        HEADS: tl.constexpr = KV_HEADS * GROUP
        element = k_cache.dtype.element_ty
        length = tl.load(lengths + row)
        share = tl.cdiv(tl.cdiv(length, SHARES), BLOCK_N) * BLOCK_N
        begin = tl.program_id(2) * share
        end = tl.minimum(begin + share, length)
        mine = (begin < length) & (end == length)
        h = tl.arange(0, BLOCK_H)
        d = tl.arange(0, D)
        g = tl.arange(0, BLOCK_G)
        whole = h < HALF
        grouped = (g < GROUP)[:, None]
        halves = grouped & whole[None, :]
        if RAW:
            turn = token * D + h
            cos_low = tl.load(cos + turn, mask=whole, other=0.0).to(tl.float32)
            cos_high = tl.load(cos + turn + HALF, mask=whole, other=0.0).to(tl.float32)
            sin_low = tl.load(sin + turn, mask=whole, other=0.0).to(tl.float32)
            sin_high = tl.load(sin + turn + HALF, mask=whole, other=0.0).to(tl.float32)
            base = token * ((HEADS + 2 * KV_HEADS) * D)
            query = base + (head * GROUP + g)[:, None] * D + h[None, :]
            low = summed(q, query, stride, halves, SPLIT)
            high = summed(q, query + HALF, stride, halves, SPLIT)
            low, high = normed_and_turned(
                low, high, cos_low, cos_high, sin_low, sin_high, q_norm, eps, 1, HALF, BLOCK_H
            )
            low = low.to(element)
            high = high.to(element)
        else:
            query = (token * HEADS + head * GROUP + g)[:, None] * D + h[None, :]
            low = tl.load(q + query, mask=halves, other=0.0)
            high = tl.load(q + query + HALF, mask=halves, other=0.0)
        top = tl.full((BLOCK_G,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_G,), tl.float32)
        result = tl.zeros((BLOCK_G, D), tl.float32)
        cached = tl.where(mine, end - 1, end) if RAW else end
        for start in range(begin, cached, BLOCK_N):
            n = start + tl.arange(0, BLOCK_N)
            live = n < cached
            block = tl.load(tables + row * table_width + n // TOKENS, mask=live, other=0).to(tl.int64)
            at = ((block * TOKENS + n % TOKENS) * KV_HEADS + head)[:, None] * D
            seen = live[:, None] & whole[None, :]
            low_key = tl.load(k_cache + at + h[None, :], mask=seen, other=0.0)
            high_key = tl.load(k_cache + at + HALF + h[None, :], mask=seen, other=0.0)
            value = tl.load(v_cache + at + d[None, :], mask=live[:, None], other=0.0)
            score = tl.dot(low, low_key.T, input_precision=ALLOW)
            score = tl.dot(high, high_key.T, score, input_precision=ALLOW) * (scale * 1.4426950408889634)
            score = tl.where(live[None, :], score, float("-inf"))
            higher = tl.maximum(top, tl.max(score, 1))
            weight = tl.exp2(score - higher[:, None])
            shrink = tl.exp2(top - higher)
            total = total * shrink + tl.sum(weight, 1)
            result = tl.dot(weight.to(value.dtype), value, result * shrink[:, None], input_precision=ALLOW)
            top = higher
        if RAW:  # noqa: SIM102 (known when the kernel is compiled; the other is not)
            if mine:
                key = base + (HEADS + head) * D + h
                left = summed(q, key, stride, whole, SPLIT)
                right = summed(q, key + HALF, stride, whole, SPLIT)
                left, right = normed_and_turned(
                    left, right, cos_low, cos_high, sin_low, sin_high, k_norm, eps, 0, HALF, BLOCK_H
                )
                left = left.to(element)
                right = right.to(element)
                own = summed(q, base + (HEADS + KV_HEADS + head) * D + d, stride, d < D, SPLIT).to(element)
                place = (tl.load(slots + token) * KV_HEADS + head) * D
                tl.store(k_cache + place + h, left, mask=whole)
                tl.store(k_cache + place + HALF + h, right, mask=whole)
                tl.store(v_cache + place + d, own)
                last = tl.sum(low.to(tl.float32) * left.to(tl.float32)[None, :], 1)
                last += tl.sum(high.to(tl.float32) * right.to(tl.float32)[None, :], 1)
                last *= scale * 1.4426950408889634
                peak = tl.maximum(top, last)
                gain = tl.exp2(last - peak)
                kept = tl.exp2(top - peak)
                total = total * kept + gain
                result = result * kept[:, None] + gain[:, None] * own.to(tl.float32)[None, :]
                top = peak
        # A share without tokens, and a padding row without any, weigh nothing.
        result = result / tl.where(total > 0, total, 1.0)[:, None]
        index = head * GROUP + g
        if SHARES == 1:
            to = out + (token * HEADS + index)[:, None] * D + d[None, :]
            tl.store(to, result.to(out.dtype.element_ty), mask=grouped)
        else:
            part = (row * HEADS + index) * SHARES + tl.program_id(2)
            tl.store(parts + part[:, None] * D + d[None, :], result, mask=grouped)
            reach = top + tl.log2(tl.where(total > 0, total, 1.0))
            tl.store(sums + part, tl.where(total > 0, reach, float("-inf")), mask=g < GROUP)


@triton.jit
def _join(
    parts,
    sums,
    starts,
    out,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    SHARES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row, head): the shares' results weighted by their sums."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    head = tl.program_id(1)
    token = tl.load(starts + row)
    if tl.load(starts + row + 1) - token == 1:
        s = tl.arange(0, SHARES)
        d = tl.arange(0, D)
        part = (row * HEADS + head) * SHARES + s
        weight = tl.load(sums + part)
        some = weight > float("-inf")
        top = tl.max(tl.where(some, weight, -1e30), 0)
        weight = tl.where(some, tl.exp2(weight - top), 0.0)
        total = tl.sum(weight, 0)
        value = tl.load(parts + part[:, None] * D + d[None, :], mask=some[:, None], other=0.0)
        result = tl.sum(value * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
        tl.store(out + (token * HEADS + head) * D + d, result.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["table_width"])
def _prefill(
    q,
    k_cache,
    v_cache,
    starts,
    lengths,
    tables,
    out,
    scale,
    table_width,
    TOKENS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    SINGLES: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ALLOW: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (tile of the row's queries, row, head of the cache): BLOCK_Q tokens times the heads of the group."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(1)
    head = tl.program_id(2)
    begin = tl.load(starts + row)
    count = tl.load(starts + row + 1) - begin
    # The last tiles see most: they start first.
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_Q
    if (tile < count) & ((count > 1) | SINGLES):
        length = tl.load(lengths + row)
        m = tl.arange(0, BLOCK_Q * BLOCK_G)
        index = tile + m // BLOCK_G
        g = m % BLOCK_G
        d = tl.arange(0, D)
        within = ((index < count) & (g < GROUP))[:, None]
        heads = ((begin + index) * KV_HEADS + head) * GROUP + g
        query = tl.load(q + heads[:, None] * D + d[None, :], mask=within, other=0.0)
        position = length - count + index
        top = tl.full((BLOCK_Q * BLOCK_G,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_Q * BLOCK_G,), tl.float32)
        result = tl.zeros((BLOCK_Q * BLOCK_G, D), tl.float32)
        end = tl.minimum(length, length - count + tile + BLOCK_Q)
        for start in range(0, end, BLOCK_N):
            n = start + tl.arange(0, BLOCK_N)
            live = n < end
            block = tl.load(tables + row * table_width + n // TOKENS, mask=live, other=0).to(tl.int64)
            at = ((block * TOKENS + n % TOKENS) * KV_HEADS + head)[:, None] * D + d[None, :]
            key = tl.load(k_cache + at, mask=live[:, None], other=0.0)
            value = tl.load(v_cache + at, mask=live[:, None], other=0.0)
            score = tl.dot(query, key.T, input_precision=ALLOW) * (scale * 1.4426950408889634)
            score = tl.where(n[None, :] <= position[:, None], score, float("-inf"))
            high = tl.maximum(top, tl.max(score, 1))
            weight = tl.exp2(score - high[:, None])
            shrink = tl.exp2(top - high)
            total = total * shrink + tl.sum(weight, 1)
            result = tl.dot(weight.to(value.dtype), value, result * shrink[:, None], input_precision=ALLOW)
            top = high
        result = result / total[:, None]
        tl.store(out + heads[:, None] * D + d[None, :], result.to(out.dtype.element_ty), mask=within)


def paged_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, layout: StepLayout, scale: float
) -> torch.Tensor:
    """Attention [T, heads, dim] of the packed queries q [T, heads, dim], contiguous, over caches [blocks, block_tokens,
    kv_heads, dim] that hold this step's tokens already; dim is a power of two, 16 at least.

    A row of kv length 0 is padding: if it has one token, that comes out as zeros; so do tokens of a padded layout that
    belong to no row. Softmax in float32.
    """
    _, heads, dim = q.shape
    _, tokens, kv_heads, _ = k_cache.shape
    rows, width = layout.block_tables.shape
    group = heads // kv_heads
    out = torch.zeros_like(q) if layout.padded else torch.empty_like(q)
    # Rows of one token among others of a few: not worth launches of their own.
    whole = rows == 1 or layout.max_query <= _FEW
    if layout.max_query > 1:
        tile = prefill_tiles(power_of_two(group), layout.max_query)
        programs(_prefill, triton.cdiv(layout.max_query, tile["BLOCK_Q"]), rows, kv_heads)(
            q,
            k_cache,
            v_cache,
            layout.query_starts,
            layout.kv_lengths,
            layout.block_tables,
            out,
            scale,
            width,
            TOKENS=tokens,
            KV_HEADS=kv_heads,
            GROUP=group,
            D=dim,
            SINGLES=whole,
            ALLOW=PRECISION[q.dtype],
            **tile,
        )
        if whole:
            return out
    _singles(q, q, q, q, q, k_cache, v_cache, layout, out, 0.0, scale, split=1, raw=False)
    return out


def decode(
    parts: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    layout: StepLayout,
    eps: float,
    scale: float,
) -> torch.Tensor:
    """Attention [T, heads, dim] of rows of one token each: `rope.rope_and_cache` and `paged_attention` at once."""
    _, rows, width = parts.shape
    _, _, kv_heads, dim = k_cache.shape
    heads = width // dim - 2 * kv_heads
    out = torch.empty((rows, heads, dim), dtype=k_cache.dtype, device=parts.device)
    _singles(parts, q_norm, k_norm, cos, sin, k_cache, v_cache, layout, out, eps, scale, split=parts.shape[0], raw=True)
    return out


def _singles(
    q: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    layout: StepLayout,
    out: torch.Tensor,
    eps: float,
    scale: float,
    *,
    split: int,
    raw: bool,
) -> None:
    """The rows of one token."""
    _, heads, dim = out.shape
    _, tokens, kv_heads, _ = k_cache.shape
    rows, width = layout.block_tables.shape
    shares = decode_splits(rows, kv_heads, width * tokens)
    parts = torch.empty((rows, heads, shares, dim), dtype=torch.float32, device=q.device) if shares > 1 else out
    sums = torch.empty((rows, heads, shares), dtype=torch.float32, device=q.device) if shares > 1 else out
    programs(_decode, rows, kv_heads, shares)(
        q,
        q_norm,
        k_norm,
        cos,
        sin,
        layout.slots,
        k_cache,
        v_cache,
        layout.query_starts,
        layout.kv_lengths,
        layout.block_tables,
        out,
        parts,
        sums,
        eps,
        scale,
        q.stride(0),
        width,
        RAW=raw,
        SPLIT=split,
        TOKENS=tokens,
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        HALF=dim // 2,
        SHARES=shares,
        BLOCK_G=max(16, power_of_two(heads // kv_heads)),
        BLOCK_H=max(16, dim // 2),
        ALLOW=PRECISION[k_cache.dtype],
        **decode_tiles(width * tokens),
    )
    if shares > 1:
        programs(_join, rows, heads)(
            parts, sums, layout.query_starts, out, HEADS=heads, D=dim, SHARES=shares, num_warps=2
        )
