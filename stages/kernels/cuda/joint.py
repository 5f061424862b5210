"""Between projection and joint attention: norms of query and key heads, rotary positions, and both streams as one."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from triton import cdiv
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stages.kernels.cuda.launch import programs

BLOCK_T = 16


@triton.jit(do_not_specialize=["told", "shown", "rows"])  # else some lengths are compiled anew, for a request
def _join(
    text_query,
    text_key,
    text_value,
    picture_query,
    picture_key,
    picture_value,
    text_query_norm,
    text_key_norm,
    picture_query_norm,
    picture_key_norm,
    text_places,
    picture_places,
    out,
    text_stride,
    picture_stride,
    text_step,
    picture_step,
    told,
    shown,
    rows,
    eps,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_T: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (tokens of a text, then of a picture; row and head; query, key or value)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    block = tl.program_id(0)
    row = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    part = tl.program_id(2)
    text_blocks = tl.cdiv(told, BLOCK_T)
    if block < text_blocks:
        first, offset, count, step, places = block * BLOCK_T, 0, told, text_step, text_places
        if part == 0:
            source, norm = text_query + row * text_stride, text_query_norm
        elif part == 1:
            source, norm = text_key + row * text_stride, text_key_norm
        else:
            source, norm = text_value + row * text_stride, text_key_norm
    else:
        first, offset, count, step, places = (block - text_blocks) * BLOCK_T, told, shown, picture_step, picture_places
        if part == 0:
            source, norm = picture_query + row * picture_stride, picture_query_norm
        elif part == 1:
            source, norm = picture_key + row * picture_stride, picture_key_norm
        else:
            source, norm = picture_value + row * picture_stride, picture_key_norm
    token = first + tl.arange(0, BLOCK_T)
    lane = tl.arange(0, DIM)
    inside = (token < count)[:, None]
    values = tl.load(source + token[:, None] * step + head * DIM + lane[None, :], mask=inside, other=0.0)
    values = values.to(tl.float32)
    if part < 2:
        values *= tl.rsqrt(tl.sum(values * values, 1) / DIM + eps)[:, None]
        values *= tl.load(norm + lane).to(tl.float32)[None, :]
        turns = tl.load(places + token[:, None] * DIM + lane[None, :], mask=inside, other=0.0)
        cosine, sine = tl.split(tl.reshape(turns, (BLOCK_T, DIM // 2, 2)))
        even, odd = tl.split(tl.reshape(values, (BLOCK_T, DIM // 2, 2)))
        turned = tl.join(even * cosine - odd * sine, even * sine + odd * cosine)
        values = tl.reshape(turned, (BLOCK_T, DIM))
    place = (part * rows + row) * (told + shown) + offset + token
    to = out + (place[:, None] * HEADS + head) * DIM + lane[None, :]
    tl.store(to, values.to(out.dtype.element_ty), mask=inside)


def join_heads(
    texts: Sequence[torch.Tensor],
    pictures: Sequence[torch.Tensor],
    norms: Sequence[torch.Tensor],
    places: Sequence[torch.Tensor],
    eps: float,
) -> torch.Tensor:
    """Query, key and value [3, rows, tokens of text and picture, heads, dim] of `texts` and `pictures`, three tensors
    [rows, tokens, heads, dim] each, of which a token's heads are contiguous; `dim` is a power of two. Without values:
    query and key.

    `norms` [dim] are those of the texts' query and key, then the pictures'; `places` complex64 [tokens, dim / 2] of
    texts (as many or more) and pictures. Rounded once.
    """
    rows, told, heads, dim = texts[0].shape
    shown = pictures[0].shape[1]
    out = texts[0].new_empty(len(texts), rows, told + shown, heads, dim)
    turns = [torch.view_as_real(each) for each in places]
    programs(_join, cdiv(told, BLOCK_T) + cdiv(shown, BLOCK_T), rows * heads, len(texts))(
        *texts[:2],
        texts[-1],
        *pictures[:2],
        pictures[-1],
        *norms,
        *turns,
        out,
        texts[0].stride(0),
        pictures[0].stride(0),
        texts[0].stride(1),
        pictures[0].stride(1),
        told,
        shown,
        rows,
        eps,
        HEADS=heads,
        DIM=dim,
        BLOCK_T=BLOCK_T,
        num_warps=4,
    )
    return out
