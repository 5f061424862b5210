"""Projections of a few rows, bound by reading the weights once.

One row is a matrix-vector product on plain cores, each program holding whole weight rows in flight, with the norm
before it and the sum after it fused. A few rows run on the tensor cores, padded to their smallest tile, the inner
dimension split over programs: what comes out are partial products, which the next kernel sums. More rows are cuBLAS's.
"""

import torch
import triton
import triton.language as tl
from torch.nn.functional import linear
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stages.kernels.cuda.launch import programs
from stages.kernels.cuda.tiles import PRECISION, gated_tiles, matvec_tiles, power_of_two, product_tiles

FEW_ROWS = 64


@triton.jit
def _matvec(
    x,
    weight,
    norm,
    residual,
    out,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    inside = (rows < N)[:, None] & (columns < K)[None, :]
    at = rows[:, None] * K + columns[None, :]
    # The weights do not depend on the kernel before: they are on their way while it still runs.
    first = tl.load(weight + at, mask=inside, other=0.0)
    if GATED:
        second = tl.load(weight + N * K + at, mask=inside, other=0.0)
    if PDL:
        gdc_wait()
    value = tl.load(x + columns, mask=columns < K, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(value * value, 0) / K + eps)
        value = value * scale * tl.load(norm + columns, mask=columns < K, other=0.0).to(tl.float32)
    result = tl.sum(first.to(tl.float32) * value[None, :], 1)
    if GATED:
        result = result * tl.sigmoid(result) * tl.sum(second.to(tl.float32) * value[None, :], 1)
    if RESIDUAL:
        result += tl.load(residual + rows, mask=rows < N, other=0.0).to(tl.float32)
    tl.store(out + rows, result.to(out.dtype.element_ty), mask=rows < N)


@triton.jit(do_not_specialize=["rows"])
def _products(
    x,
    weight,
    parts,
    rows,
    N: tl.constexpr,
    K: tl.constexpr,
    PART: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ALLOW: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (tile of N, part of K, tile of rows)."""
    if PDL:
        gdc_launch_dependents()
    part = tl.program_id(1)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    live = m < rows
    if PART <= BLOCK_K:
        # All of the weights at once, before the kernel before this one is done.
        k = part * PART + tl.arange(0, BLOCK_K)
        within = (tl.arange(0, BLOCK_K) < PART) & (k < K)
        other = tl.load(weight + n[:, None] * K + k[None, :], mask=(n < N)[:, None] & within[None, :], other=0.0)
        if PDL:
            gdc_wait()
        value = tl.load(x + m[:, None] * K + k[None, :], mask=live[:, None] & within[None, :], other=0.0)
        result = tl.dot(value, other.T, input_precision=ALLOW)
    else:
        if PDL:
            gdc_wait()
        result = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, PART, BLOCK_K):
            at = start + tl.arange(0, BLOCK_K)
            inner = part * PART + at
            inside = (at < PART) & (inner < K)
            left = tl.load(x + m[:, None] * K + inner[None, :], mask=live[:, None] & inside[None, :], other=0.0)
            right = tl.load(
                weight + n[:, None] * K + inner[None, :], mask=(n < N)[:, None] & inside[None, :], other=0.0
            )
            result = tl.dot(left, right.T, result, input_precision=ALLOW)
    to = parts + part * rows * N + m[:, None] * N + n[None, :]
    tl.store(to, result, mask=live[:, None] & (n < N)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _gated(
    x,
    weight,
    out,
    rows,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ALLOW: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    live = m < rows
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = (n < N)[:, None] & (k < K)[None, :]
        value = tl.load(x + m[:, None] * K + k[None, :], mask=live[:, None] & (k < K)[None, :], other=0.0)
        at = weight + n[:, None] * K + k[None, :]
        gate = tl.dot(value, tl.load(at, mask=inside, other=0.0).T, gate, input_precision=ALLOW)
        up = tl.dot(value, tl.load(at + N * K, mask=inside, other=0.0).T, up, input_precision=ALLOW)
    result = gate * tl.sigmoid(gate) * up
    to = out + m[:, None] * N + n[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=live[:, None] & (n < N)[None, :])


def matvec(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
    gated: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`residual` + norm(x) W^T: [1, N] for one row x [1, K], all contiguous.

    `weight` is [N, K]. `norm` [K] applies an RMS norm to x first. With `gated` the weight is [2N, K], gate rows then up
    rows, and the result silu(gate) * up. `dtype` is the result's, x's by default.
    """
    k = x.shape[1]
    n = weight.shape[0] // 2 if gated else weight.shape[0]
    out = torch.empty((1, n), dtype=dtype or x.dtype, device=x.device)
    tile = matvec_tiles(n, k, gated=gated)
    programs(_matvec, triton.cdiv(n, tile["BLOCK_N"]))(
        x,
        weight,
        norm if norm is not None else x,
        residual if residual is not None else x,
        out,
        eps,
        N=n,
        K=k,
        NORM=norm is not None,
        RESIDUAL=residual is not None,
        GATED=gated,
        BLOCK_K=power_of_two(k),
        **tile,
    )
    return out


def products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Partial products [S, T, N] whose sum over S is x W^T, for x [T, K] and `weight` [N, K], both contiguous.

    float32 and as many parts as fill the device for a few rows, one part of x's dtype for more.
    """
    rows, k = x.shape
    n = weight.shape[0]
    if rows > FEW_ROWS:
        return linear(x, weight)[None]
    tile, split = product_tiles(rows, n, k)
    parts = torch.empty((split, rows, n), dtype=torch.float32, device=x.device)
    programs(_products, triton.cdiv(n, tile["BLOCK_N"]), split, triton.cdiv(rows, tile["BLOCK_M"]))(
        x, weight, parts, rows, N=n, K=k, PART=triton.cdiv(k, split), ALLOW=PRECISION[x.dtype], **tile
    )
    return parts


def gated_products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up [T, N] for x [T, K] and `weight` [2N, K], gate rows then up rows, both contiguous."""
    rows, k = x.shape
    n = weight.shape[0] // 2
    if rows > FEW_ROWS:
        gate, up = linear(x, weight).chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    tile = gated_tiles(rows, n, k)
    programs(_gated, triton.cdiv(n, tile["BLOCK_N"]), triton.cdiv(rows, tile["BLOCK_M"]))(
        x, weight, out, rows, N=n, K=k, ALLOW=PRECISION[x.dtype], **tile
    )
    return out
