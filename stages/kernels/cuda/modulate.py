"""Between the products of a two-stream transformer block: the gated sum of a stream and what was computed for it, and
layer norm and modulation of that, for pictures and texts in one launch. A token's features stay in registers."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from triton import cdiv
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stages.kernels.cuda.launch import programs
from stages.kernels.cuda.tiles import power_of_two

TOKENS = 4
"""Of a row in one program, which reads what modulates the row once."""
WARPS = 4


@triton.jit(do_not_specialize=["shown", "told"])  # else some lengths are compiled anew, for a request
def _modulate(
    picture,
    text,
    picture_update,
    text_update,
    before,
    after,
    picture_out,
    text_out,
    shown,
    told,
    row_stride,
    stream_stride,
    eps,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TOKENS: tl.constexpr,
    ADD: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (tokens of a picture, then of a text; row)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    block = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    picture_blocks = tl.cdiv(shown, TOKENS)
    own = row * row_stride
    if block < picture_blocks:
        first, count, stream, update, out = block * TOKENS, shown, picture, picture_update, picture_out
    else:
        first, count, stream, update, out = (block - picture_blocks) * TOKENS, told, text, text_update, text_out
        own += stream_stride
    k = tl.arange(0, BLOCK_K)
    inside = k < K
    shift = tl.load(after + own + k, mask=inside, other=0.0)
    scale = tl.load(after + own + K + k, mask=inside, other=0.0)
    if ADD:
        gate = tl.load(before + own + 2 * K + k, mask=inside, other=0.0)
    for index in tl.static_range(TOKENS):
        token = first + index
        here = k < tl.where(token < count, K, 0)
        at = (row * count + token) * K + k
        value = tl.load(stream + at, mask=here, other=0.0)
        if ADD:
            added = tl.load(update + at, mask=here, other=0.0).to(tl.float32)
            # As the next sum will read it.
            value = (value.to(tl.float32) + gate.to(tl.float32) * added).to(value.dtype)
            tl.store(stream + at, value, mask=here)
        value = value.to(tl.float32)
        value = tl.where(inside, value - tl.sum(value, 0) / K, 0.0)
        value *= tl.rsqrt(tl.sum(value * value, 0) / K + eps)
        value = value * (1.0 + scale.to(tl.float32)) + shift.to(tl.float32)
        tl.store(out + at, value.to(out.dtype.element_ty), mask=here)


def modulate(
    streams: Sequence[torch.Tensor],
    after: torch.Tensor,
    eps: float,
    updates: Sequence[torch.Tensor] = (),
    before: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Layer norm of both streams [rows, tokens, K], of pictures and of texts, times 1 + scale, plus shift; rounded
    once. Before that, `updates` of the same shapes times gate are added to them in place.

    `after` [rows, 2, 3, K] has shift, scale and gate of either stream, `before`, with the same strides, those whose
    gate the updates take. Features lie side by side, and so does all of a stream.
    """
    (rows, shown, size), told = streams[0].shape, streams[1].shape[1]
    out = [torch.empty_like(each) for each in streams]
    programs(_modulate, cdiv(shown, TOKENS) + cdiv(told, TOKENS), rows)(
        *streams,
        *(updates or streams),
        after if before is None else before,
        after,
        *out,
        shown,
        told,
        after.stride(0),
        after.stride(1),
        eps,
        K=size,
        BLOCK_K=power_of_two(size),
        TOKENS=TOKENS,
        ADD=before is not None,
        num_warps=WARPS,
    )
    return out
