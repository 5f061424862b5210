"""Attention to a few more keys, whose number lies on the device, on top of what is attended to already: shares of a sum
of exponents are weighed again, as FlashAttention does from one block of keys to the next (Dao et al., 2022)."""

import math

import torch
import triton
import triton.language as tl
from triton import cdiv
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stages.kernels.cuda.launch import programs
from stages.kernels.cuda.tiles import PRECISION

BLOCK_T, BLOCK_K, WARPS = 64, 32, 4
"""Queries and keys at a time, measured on an H200."""


@triton.jit(do_not_specialize=["shown", "told"])  # else some lengths are compiled anew, for a request
def _attend_as_well(
    query,
    key,
    value,
    found,
    sums,
    counts,
    picture_out,
    text_out,
    value_stride,
    value_step,
    shown,
    told,
    scale,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ALLOW: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (tokens of a picture, then of a text; row and head)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    block = tl.program_id(0)
    row = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    picture_blocks = tl.cdiv(shown, BLOCK_T)
    if block < picture_blocks:
        first, offset, size, out = block * BLOCK_T, 0, shown, picture_out
    else:
        first, offset, size, out = (block - picture_blocks) * BLOCK_T, shown, told, text_out
    count = tl.load(counts + row)
    tokens = shown + told
    token = first + tl.arange(0, BLOCK_T)
    inside = token < size
    lane = tl.arange(0, DIM)
    at = ((row * tokens + offset + token[:, None]) * HEADS + head) * DIM + lane[None, :]
    asked = tl.load(query + at, mask=inside[:, None], other=0.0)
    # As powers of two; what was found so far weighs 1.
    most = tl.load(sums + (row * HEADS + head) * tokens + offset + token, mask=inside, other=0.0) * 1.4426950408889634
    total = tl.full([BLOCK_T], 1.0, tl.float32)
    values = tl.load(found + at, mask=inside[:, None], other=0.0).to(tl.float32)
    for start in range(0, count, BLOCK_K):
        place = start + tl.arange(0, BLOCK_K)
        real = place < count
        here = ((row * tokens + shown + place[:, None]) * HEADS + head) * DIM + lane[None, :]
        there = row * value_stride + place[:, None] * value_step + head * DIM + lane[None, :]
        keys = tl.load(key + here, mask=real[:, None], other=0.0)
        more = tl.load(value + there, mask=real[:, None], other=0.0)
        score = tl.dot(asked, keys.T, input_precision=ALLOW) * scale
        score = tl.where(real[None, :], score, float("-inf"))
        now = tl.maximum(most, tl.max(score, 1))
        share = tl.exp2(score - now[:, None])
        kept = tl.exp2(most - now)
        total = total * kept + tl.sum(share, 1)
        values = tl.dot(share.to(more.dtype), more, values * kept[:, None], input_precision=ALLOW)
        most = now
    to = out + ((row * size + token[:, None]) * HEADS + head) * DIM + lane[None, :]
    tl.store(to, (values / total[:, None]).to(out.dtype.element_ty), mask=inside[:, None])


def attended_as_well(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    found: torch.Tensor,
    sums: torch.Tensor,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `query` attends to, of pictures [rows, shown, heads, dim] and of texts [rows, told, heads, dim].

    `query`, `key` and `found` [rows, shown + told, heads, dim] lie contiguously, a picture before its text; `found` is
    what each query attends to among the picture's keys, `sums`, float32 [rows, heads, shown + told], the logarithm of
    its sum of exponents. Added are the first `counts`, int32 [rows], of the text's keys, and of its `value` [rows,
    told, heads, dim], of which a token's heads are contiguous. `dim` is a power of two.
    """
    (rows, tokens, heads, dim), told = query.shape, value.shape[1]
    shown = tokens - told
    outs = query.new_empty(rows, shown, heads, dim), query.new_empty(rows, told, heads, dim)
    programs(_attend_as_well, cdiv(shown, BLOCK_T) + cdiv(told, BLOCK_T), rows * heads)(
        query,
        key,
        value,
        found,
        sums,
        counts,
        *outs,
        value.stride(0),
        value.stride(1),
        shown,
        told,
        dim**-0.5 * math.log2(math.e),
        HEADS=heads,
        DIM=dim,
        BLOCK_T=BLOCK_T,
        BLOCK_K=BLOCK_K,
        ALLOW=PRECISION[query.dtype],
        num_warps=WARPS,
    )
    return outs
