"""From router logits to each row's experts and their weights."""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stages.kernels.cuda.grouping import Grouping
from stages.kernels.cuda.launch import programs
from stages.kernels.cuda.tiles import power_of_two


@triton.jit
def _route(
    parts,
    slots,
    ids,
    weights,
    stride,
    end,
    EXPERTS: tl.constexpr,
    ALWAYS: tl.constexpr,
    GATES: tl.constexpr,
    TOP: tl.constexpr,
    RENORM: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row). Equal probabilities go to the lower index."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK_E)
    at = parts + row * (EXPERTS + GATES)
    logit = tl.zeros((BLOCK_E,), tl.float32)
    for part in tl.static_range(SPLIT):
        logit += tl.load(at + part * stride + e, mask=e < EXPERTS, other=0.0).to(tl.float32)
    logit = tl.where(e < EXPERTS, logit, float("-inf"))
    left = tl.exp(logit - tl.max(logit, 0))
    left = tl.where(e < EXPERTS, left / tl.sum(left, 0), -1.0)
    c = tl.arange(0, BLOCK_C)
    chosen = tl.zeros((BLOCK_C,), tl.int32)
    weight = tl.zeros((BLOCK_C,), tl.float32)
    for choice in tl.static_range(TOP):
        value, best = tl.max(left, 0, return_indices=True)
        weight = tl.where(c == choice, value, weight)
        chosen = tl.where(c == choice, best, chosen)
        left = tl.where(e == best, -1.0, left)
    if RENORM:
        weight = weight / tl.sum(weight, 0)
    if ALWAYS > 0:
        gate = tl.zeros((1,), tl.float32)
        for part in tl.static_range(SPLIT):
            gate += tl.load(at + part * stride + EXPERTS).to(tl.float32)
        shared = (c >= TOP) & (c < TOP + ALWAYS)
        chosen = tl.where(shared, EXPERTS + c - TOP, chosen)
        weight = tl.where(shared, tl.sigmoid(gate), weight)
    chosen = tl.where(tl.load(slots + row) < end, chosen, -1)
    to = row * (TOP + ALWAYS) + c
    tl.store(ids + to, chosen, mask=c < TOP + ALWAYS)
    tl.store(weights + to, weight, mask=c < TOP + ALWAYS)


def route(
    parts: torch.Tensor, slots: torch.Tensor, end: int, *, experts: int, top: int, renorm: bool, always: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [T, top + always] int32 and weights [T, top + always] float32 of each row's experts.

    The logits are the sum of `parts` [S, T, experts or more], the weights their softmax, with `renorm` over the chosen.
    The `always` experts follow the routed ones in number, each with the weight sigmoid(logits[:, experts]). Rows whose
    `slots` [T] are not below `end` are padding: they have no experts, their ids are -1.
    """
    rows = parts.shape[1]
    choices = top + always
    ids = torch.empty((rows, choices), dtype=torch.int32, device=parts.device)
    weights = torch.empty((rows, choices), dtype=torch.float32, device=parts.device)
    programs(_route, rows)(
        parts,
        slots,
        ids,
        weights,
        parts.stride(0),
        end,
        EXPERTS=experts,
        ALWAYS=always,
        GATES=parts.shape[2] - experts,
        TOP=top,
        RENORM=renorm,
        SPLIT=parts.shape[0],
        BLOCK_E=power_of_two(experts),
        BLOCK_C=power_of_two(choices),
        num_warps=1,
    )
    return ids, weights


# More rows than these do not fit the registers of one program.
FEW_ROWS = 32


@triton.jit(do_not_specialize=["rows", "tiles_total"])
def _route_few(
    parts,
    slots,
    ids,
    weights,
    order,
    tiles,
    stride,
    end,
    rows,
    tiles_total,
    EXPERTS: tl.constexpr,
    ALWAYS: tl.constexpr,
    GATES: tl.constexpr,
    TOP: tl.constexpr,
    RENORM: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_T: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: routes all rows, then sorts them by expert in tiles of BLOCK_M, without leaving the registers."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    r = tl.arange(0, BLOCK_R)
    e = tl.arange(0, BLOCK_E)
    c = tl.arange(0, BLOCK_C)
    WIDTH: tl.constexpr = EXPERTS + GATES
    CHOICES: tl.constexpr = TOP + ALWAYS
    at = parts + r[:, None] * WIDTH + e[None, :]
    inside = (r < rows)[:, None] & (e < EXPERTS)[None, :]
    logit = tl.zeros((BLOCK_R, BLOCK_E), tl.float32)
    for part in tl.static_range(SPLIT):
        logit += tl.load(at + part * stride, mask=inside, other=0.0).to(tl.float32)
    logit = tl.where((e < EXPERTS)[None, :], logit, float("-inf"))
    left = tl.exp(logit - tl.max(logit, 1)[:, None])
    left = tl.where((e < EXPERTS)[None, :], left / tl.sum(left, 1)[:, None], -1.0)
    chosen = tl.zeros((BLOCK_R, BLOCK_C), tl.int32)
    weight = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    taken = tl.zeros((BLOCK_R, BLOCK_E), tl.int32)
    for choice in tl.static_range(TOP):
        value, best = tl.max(left, 1, return_indices=True)
        weight = tl.where((c == choice)[None, :], value[:, None], weight)
        chosen = tl.where((c == choice)[None, :], best[:, None], chosen)
        hit = e[None, :] == best[:, None]
        taken = tl.where(hit, 1, taken)
        left = tl.where(hit, -1.0, left)
    if RENORM:
        weight = weight / tl.sum(weight, 1)[:, None]
    if ALWAYS > 0:
        gate = tl.zeros((BLOCK_R,), tl.float32)
        for part in tl.static_range(SPLIT):
            gate += tl.load(parts + part * stride + r * WIDTH + EXPERTS, mask=r < rows, other=0.0).to(tl.float32)
        shared = ((c >= TOP) & (c < CHOICES))[None, :]
        chosen = tl.where(shared, EXPERTS + c[None, :] - TOP, chosen)
        weight = tl.where(shared, tl.sigmoid(gate)[:, None], weight)
    live = (tl.load(slots + r, mask=r < rows, other=end) < end) & (r < rows)
    chosen = tl.where(live[:, None], chosen, -1)
    taken = tl.where(live[:, None], taken, 0)
    pair = r[:, None] * CHOICES + c[None, :]
    written = (r < rows)[:, None] & (c < CHOICES)[None, :]
    tl.store(ids + pair, chosen, mask=written)
    tl.store(weights + pair, weight, mask=written)

    total = tl.sum(taken, 0)
    offset = tl.cumsum(total, 0) - total
    position = tl.cumsum(taken, 0) - taken + offset[None, :]
    for choice in tl.static_range(TOP):
        expert = tl.sum(tl.where((c == choice)[None, :], chosen, 0), 1)
        place = tl.sum(tl.where(e[None, :] == expert[:, None], position, 0), 1)
        tl.store(order + place, r * CHOICES + choice, mask=live)
    count = (total + BLOCK_M - 1) // BLOCK_M
    begin = tl.cumsum(count, 0) - count
    for tile in tl.static_range((BLOCK_R + BLOCK_M - 1) // BLOCK_M):
        to = tiles + (begin + tile) * 3
        tl.store(to, e, mask=tile < count)
        tl.store(to + 1, offset + tile * BLOCK_M, mask=tile < count)
        tl.store(to + 2, offset + total, mask=tile < count)
    used = tl.sum(count, 0)
    # The experts that every row takes come last, each with all rows: no need to sort them.
    if ALWAYS > 0:
        everyone = live.to(tl.int32)
        number = tl.sum(everyone, 0)
        rank = tl.cumsum(everyone, 0) - everyone
        routed = tl.sum(total, 0)
        t = tl.arange(0, BLOCK_T)
        needed = (number + BLOCK_M - 1) // BLOCK_M
        for extra in tl.static_range(ALWAYS):
            first = routed + extra * number
            tl.store(order + first + rank, r * CHOICES + TOP + extra, mask=live)
            to = tiles + (used + t) * 3
            tl.store(to, tl.full((BLOCK_T,), EXPERTS + extra, tl.int32), mask=t < needed)
            tl.store(to + 1, first + t * BLOCK_M, mask=t < needed)
            tl.store(to + 2, tl.zeros((BLOCK_T,), tl.int32) + first + number, mask=t < needed)
            used += needed
    for start in range(0, tiles_total, BLOCK_T):
        rest = start + tl.arange(0, BLOCK_T)
        tl.store(tiles + rest * 3, tl.full((BLOCK_T,), -1, tl.int32), mask=(rest >= used) & (rest < tiles_total))


def route_few(
    parts: torch.Tensor,
    slots: torch.Tensor,
    end: int,
    block_m: int,
    *,
    experts: int,
    top: int,
    renorm: bool,
    always: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, Grouping]:
    """`route`, and `grouping.group` of what it found, for `FEW_ROWS` at most."""
    rows = parts.shape[1]
    choices = top + always
    device = parts.device
    ids = torch.empty((rows, choices), dtype=torch.int32, device=device)
    weights = torch.empty((rows, choices), dtype=torch.float32, device=device)
    plan = Grouping.empty(ids, experts + always, block_m)
    block_r = power_of_two(rows)
    programs(_route_few, 1)(
        parts,
        slots,
        ids,
        weights,
        plan.order,
        plan.tiles,
        parts.stride(0),
        end,
        rows,
        len(plan.tiles),
        EXPERTS=experts,
        ALWAYS=always,
        GATES=parts.shape[2] - experts,
        TOP=top,
        RENORM=renorm,
        SPLIT=parts.shape[0],
        BLOCK_R=block_r,
        BLOCK_E=power_of_two(experts),
        BLOCK_C=power_of_two(choices),
        BLOCK_M=block_m,
        BLOCK_T=64,
        num_warps=4 if block_r <= 8 else 8,
    )
    return ids, weights, plan
