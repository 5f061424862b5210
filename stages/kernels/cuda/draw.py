"""From logits over a small vocabulary to one token a row and what the next step reads of it, in one kernel.

Filters are top-k, top-p and min-p in this order, the draw the inverse distribution, as `stages.runners.sampler` defines
them; a row's token depends on its own logits and number alone. Thresholds are found by bisection, not by sorting.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stages.kernels.cuda.launch import programs
from stages.kernels.cuda.tiles import power_of_two
from stages.runners.sampling import SamplingParams


@triton.jit(do_not_specialize=["column", "top_k"])
def _draw(
    parts,
    numbers,
    greedy,
    table,
    norm,
    codes,
    total,
    out,
    normed,
    temperature,
    top_k,
    top_p,
    min_p,
    eps,
    stride,
    column,
    columns,
    V: tl.constexpr,
    H: tl.constexpr,
    SPLIT: tl.constexpr,
    DRAW: tl.constexpr,
    SOME_GREEDY: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_H: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    v = tl.arange(0, BLOCK_V)
    score = tl.zeros((BLOCK_V,), tl.float32)
    for part in tl.static_range(SPLIT):
        score += tl.load(parts + part * stride + row * V + v, mask=v < V, other=0.0).to(tl.float32)
    score = tl.where(v < V, score, float("-inf"))
    _, token = tl.max(score, 0, return_indices=True)
    if DRAW:
        score = score / temperature
        best = tl.max(score, 0)
        # Integers in the order of the floats, so that a threshold is found in as many halvings as they have bits.
        bits = score.to(tl.int32, bitcast=True)
        key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
        lowest = tl.min(tl.where(v < V, key, 0x7FFFFFFF), 0)
        beyond = tl.max(key, 0) + 1
        floor = lowest
        if top_k > 0:
            low = lowest
            high = beyond
            while high - low > 1:
                middle = low + (high - low) // 2
                enough = tl.sum((key >= middle).to(tl.int32), 0) >= top_k
                low = tl.where(enough, middle, low)
                high = tl.where(enough, high, middle)
            floor = low
        mass = tl.where((key >= floor) & (v < V), tl.exp(score - best), 0.0)
        if top_p < 1:
            share = top_p * tl.sum(mass, 0)
            low = floor
            high = beyond
            while high - low > 1:
                middle = low + (high - low) // 2
                enough = tl.sum(tl.where(key >= middle, mass, 0.0), 0) >= share
                low = tl.where(enough, middle, low)
                high = tl.where(enough, high, middle)
            mass = tl.where(key >= low, mass, 0.0)
        # The best has mass 1, and a token a share of that which is its probability over the best one's.
        mass = tl.where(mass >= min_p, mass, 0.0)
        cumulative = tl.cumsum(mass.to(tl.float64), 0)
        number = tl.load(numbers + row * columns + column)
        reached = cumulative <= number * tl.max(cumulative, 0)
        last = tl.max(tl.where(mass > 0, v, 0), 0)
        drawn = tl.minimum(tl.sum(reached.to(tl.int32), 0), last)
        if SOME_GREEDY:
            token = tl.where(tl.load(greedy + row), token, drawn)
        else:
            token = drawn
    tl.store(codes + row * columns + column, token.to(tl.int64))
    h = tl.arange(0, BLOCK_H)
    embed = tl.load(table + token.to(tl.int64) * H + h, mask=h < H, other=0.0)
    tl.store(out + row * H + h, embed, mask=h < H)
    value = embed.to(tl.float32)
    at = total + row * H + h
    tl.store(at, tl.load(at, mask=h < H, other=0.0) + value, mask=h < H)
    scale = tl.rsqrt(tl.sum(value * value, 0) / H + eps)
    value = value * scale * tl.load(norm + h, mask=h < H, other=0.0).to(tl.float32)
    tl.store(normed + row * H + h, value.to(normed.dtype.element_ty), mask=h < H)


def draw(
    parts: torch.Tensor,
    params: SamplingParams,
    numbers: torch.Tensor | None,
    greedy: torch.Tensor | None,
    column: int,
    *,
    table: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    codes: torch.Tensor,
    total: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The embeddings [R, H] of the tokens drawn, and their RMS norm under `norm` [H].

    The logits are the sum of `parts` [S, R, V]. Tokens are written to `codes[:, column]` ([R, columns] int64), their
    embeddings, rows of `table` [V, H], added to `total` [R, H] float32. `numbers` [R, columns] float64 are in [0, 1);
    without them all rows take the likeliest token, as do rows of `greedy` [R] bool.
    """
    split, rows, vocabulary = parts.shape
    width = table.shape[1]
    out = torch.empty((rows, width), dtype=table.dtype, device=table.device)
    normed = torch.empty_like(out)
    programs(_draw, rows)(
        parts,
        numbers if numbers is not None else total,
        greedy if greedy is not None else total,
        table,
        norm,
        codes,
        total,
        out,
        normed,
        float(params.temperature),
        params.top_k,
        float(params.top_p),
        float(params.min_p),
        eps,
        parts.stride(0),
        column,
        codes.shape[1],
        V=vocabulary,
        H=width,
        SPLIT=split,
        DRAW=numbers is not None,
        SOME_GREEDY=greedy is not None,
        BLOCK_V=power_of_two(vocabulary),
        BLOCK_H=power_of_two(width),
        num_warps=4,
    )
    return out, normed
