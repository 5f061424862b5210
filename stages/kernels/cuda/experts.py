"""Routed experts of a mixture: rows grouped by expert on the device, each needed expert's weights read once.

One row needs no grouping: a program holds whole weight rows of one expert, and the second product sums over the experts
in a fixed order. More rows are sorted by expert without a host round trip (so a launch can be captured in a graph) and
run as tiles of one expert each on the tensor cores. No atomics: the same rows give the same bits.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stages.kernels.cuda.grouping import Grouping, group
from stages.kernels.cuda.launch import programs
from stages.kernels.cuda.tiles import (
    PRECISION,
    down_row_tiles,
    down_tiles,
    expert_rows,
    gate_up_row_tiles,
    gate_up_tiles,
    power_of_two,
)


@triton.jit
def _gate_up_row(
    x,
    norm,
    gate_up,
    ids,
    act,
    eps,
    H: tl.constexpr,
    INNER: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    choice = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    expert = tl.load(ids + choice).to(tl.int64)
    inside = (rows < tl.where(expert >= 0, INNER, 0))[:, None] & (columns < H)[None, :]
    at = gate_up + expert * (2 * INNER * H) + rows[:, None] * H + columns[None, :]
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + INNER * H, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + columns, mask=columns < H, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(value * value, 0) / H + eps)
        value = value * scale * tl.load(norm + columns, mask=columns < H, other=0.0).to(tl.float32)
    gate = tl.sum(gate * value[None, :], 1)
    result = gate * tl.sigmoid(gate) * tl.sum(up * value[None, :], 1)
    tl.store(act + choice * INNER + rows, result.to(act.dtype.element_ty), mask=rows < INNER)


@triton.jit
def _down_row(
    act,
    down,
    ids,
    weights,
    residual,
    out,
    H: tl.constexpr,
    INNER: tl.constexpr,
    CHOICES: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for choice in tl.static_range(CHOICES):
        expert = tl.load(ids + choice).to(tl.int64)
        inside = (rows < tl.where(expert >= 0, H, 0))[:, None] & (columns < INNER)[None, :]
        at = expert * (H * INNER) + rows[:, None] * INNER + columns[None, :]
        weight = tl.load(weights + choice).to(tl.float32)
        value = tl.load(act + choice * INNER + columns, mask=columns < INNER, other=0.0).to(tl.float32) * weight
        total += tl.load(down + at, mask=inside, other=0.0).to(tl.float32) * value[None, :]
    result = tl.sum(total, 1)
    if RESIDUAL:
        result += tl.load(residual + rows, mask=rows < H, other=0.0).to(tl.float32)
    tl.store(out + rows, result.to(out.dtype.element_ty), mask=rows < H)


@triton.jit
def _gate_up(
    x,
    gate_up,
    order,
    tiles,
    act,
    H: tl.constexpr,
    INNER: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ALLOW: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tile = tiles + tl.program_id(1) * 3
    expert = tl.load(tile).to(tl.int64)
    if expert >= 0:
        m = tl.load(tile + 1) + tl.arange(0, BLOCK_M)
        live = m < tl.load(tile + 2)
        token = (tl.load(order + m, mask=live, other=0) // CHOICES).to(tl.int64)
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        base = gate_up + expert * (2 * INNER * H)
        gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, H, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            inside = (n < INNER)[:, None] & (k < H)[None, :]
            at = base + n[:, None] * H + k[None, :]
            value = tl.load(x + token[:, None] * H + k[None, :], mask=live[:, None] & (k < H)[None, :], other=0.0)
            gate = tl.dot(value, tl.load(at, mask=inside, other=0.0).T, gate, input_precision=ALLOW)
            up = tl.dot(value, tl.load(at + INNER * H, mask=inside, other=0.0).T, up, input_precision=ALLOW)
        result = gate * tl.sigmoid(gate) * up
        to = act + m.to(tl.int64)[:, None] * INNER + n[None, :]
        tl.store(to, result.to(act.dtype.element_ty), mask=live[:, None] & (n < INNER)[None, :])


@triton.jit
def _down(
    act,
    down,
    order,
    tiles,
    weights,
    out,
    H: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ALLOW: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tile = tiles + tl.program_id(1) * 3
    expert = tl.load(tile).to(tl.int64)
    if expert >= 0:
        m = tl.load(tile + 1) + tl.arange(0, BLOCK_M)
        live = m < tl.load(tile + 2)
        pair = tl.load(order + m, mask=live, other=0).to(tl.int64)
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        base = down + expert * (H * INNER)
        result = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, INNER, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            at = act + m.to(tl.int64)[:, None] * INNER + k[None, :]
            value = tl.load(at, mask=live[:, None] & (k < INNER)[None, :], other=0.0)
            inside = (n < H)[:, None] & (k < INNER)[None, :]
            other = tl.load(base + n[:, None] * INNER + k[None, :], mask=inside, other=0.0)
            result = tl.dot(value, other.T, result, input_precision=ALLOW)
        result *= tl.load(weights + pair, mask=live, other=0.0).to(tl.float32)[:, None]
        to = out + pair[:, None] * H + n[None, :]
        tl.store(to, result.to(out.dtype.element_ty), mask=live[:, None] & (n < H)[None, :])


@triton.jit
def _combine(
    parts,
    ids,
    residual,
    norm,
    out,
    normed,
    eps,
    H: tl.constexpr,
    CHOICES: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_K,), tl.float32)
    if RESIDUAL:
        total += tl.load(residual + row * H + k, mask=k < H, other=0.0).to(tl.float32)
    for choice in tl.static_range(CHOICES):
        pair = row * CHOICES + choice
        # What no tile has written is not read.
        written = tl.where(tl.load(ids + pair) >= 0, H, 0)
        total += tl.load(parts + pair * H + k, mask=k < written, other=0.0).to(tl.float32)
    total = total.to(out.dtype.element_ty)
    tl.store(out + row * H + k, total, mask=k < H)
    if NORM:
        value = total.to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value, 0) / H + eps)
        value = value * scale * tl.load(norm + k, mask=k < H, other=0.0).to(tl.float32)
        tl.store(normed + row * H + k, value.to(normed.dtype.element_ty), mask=k < H)


def tile_rows(rows: int, choices: int, experts: int) -> int:
    """Pairs in a tile, for so many rows with so many choices each among so many experts."""
    return expert_rows(rows * choices / experts)


def experts_of_row(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    *,
    residual: bool,
) -> torch.Tensor:
    """As `experts`, for one row x [1, h], to which `norm` [h] applies an RMS norm first; `residual` adds x itself."""
    h, inner = down.shape[1:]
    choices = ids.shape[1]
    out = torch.empty_like(x)
    act = torch.empty((choices, inner), dtype=x.dtype, device=x.device)
    tile = gate_up_row_tiles(inner, h)
    programs(_gate_up_row, triton.cdiv(inner, tile["BLOCK_N"]), choices)(
        x,
        norm if norm is not None else x,
        gate_up,
        ids,
        act,
        eps,
        H=h,
        INNER=inner,
        NORM=norm is not None,
        BLOCK_K=power_of_two(h),
        **tile,
    )
    tile = down_row_tiles(inner, h)
    programs(_down_row, triton.cdiv(h, tile["BLOCK_N"]))(
        act,
        down,
        ids,
        weights,
        x,
        out,
        H=h,
        INNER=inner,
        CHOICES=choices,
        RESIDUAL=residual,
        BLOCK_K=power_of_two(inner),
        **tile,
    )
    return out


def experts_of_rows(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    *,
    plan: Grouping | None = None,
    residual: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `experts`, plus `residual` [T, h]; and with `norm` [h] the RMS norm of that, else the sum itself.

    `plan` is the grouping of `ids` in tiles of `tile_rows`, if it is known already.
    """
    rows, h = x.shape
    count, _, inner = down.shape
    choices = ids.shape[1]
    block_m = tile_rows(rows, choices, count)
    if plan is None:
        plan = group(ids, count, block_m)
    act = torch.empty((rows * choices, inner), dtype=x.dtype, device=x.device)
    parts = torch.empty((rows * choices, h), dtype=x.dtype, device=x.device)
    sizes = {"H": h, "INNER": inner, "BLOCK_M": block_m, "ALLOW": PRECISION[x.dtype]}
    tile = gate_up_tiles(block_m, inner, h)
    programs(_gate_up, triton.cdiv(inner, tile["BLOCK_N"]), len(plan.tiles))(
        x, gate_up, plan.order, plan.tiles, act, CHOICES=choices, **sizes, **tile
    )
    tile = down_tiles(block_m, inner, h)
    programs(_down, triton.cdiv(h, tile["BLOCK_N"]), len(plan.tiles))(
        act, down, plan.order, plan.tiles, weights, parts, **sizes, **tile
    )
    out = torch.empty_like(x)
    normed = torch.empty_like(x) if norm is not None else out
    programs(_combine, rows)(
        parts,
        ids,
        residual if residual is not None else x,
        norm if norm is not None else x,
        out,
        normed,
        eps,
        H=h,
        CHOICES=choices,
        RESIDUAL=residual is not None,
        NORM=norm is not None,
        BLOCK_K=power_of_two(h),
        num_warps=8,
    )
    return out, normed


def experts(
    hidden: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The weighted sum [T, h] of each row's experts: down(silu(gate x) * up x).

    `hidden` [T, h]; `gate_up` [E, 2i, h], gate rows then up rows; `down` [E, h, i]; `ids` [T, k] integer, negative for
    none; `weights` [T, k]; all contiguous. Sums in float32, one row's experts in the order of its choices.
    """
    if len(hidden) == 1:
        return experts_of_row(hidden, None, 0.0, gate_up, down, ids, weights, residual=False)
    return experts_of_rows(hidden, gate_up, down, ids, weights)[0]
