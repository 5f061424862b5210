"""RMS norms, alone and behind the sum that makes their input."""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stages.kernels.cuda.launch import programs
from stages.kernels.cuda.tiles import power_of_two


@triton.jit
def _norm(x, weight, out, eps, K: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    value = tl.load(x + row * K + k, mask=k < K, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / K + eps)
    value = value * scale * tl.load(weight + k, mask=k < K, other=0.0).to(tl.float32)
    tl.store(out + row * K + k, value.to(out.dtype.element_ty), mask=k < K)


@triton.jit
def _add_norm(
    x,
    parts,
    weight,
    out,
    normed,
    eps,
    stride,
    K: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    value = tl.load(x + row * K + k, mask=k < K, other=0.0).to(tl.float32)
    for part in tl.static_range(SPLIT):
        value += tl.load(parts + part * stride + row * K + k, mask=k < K, other=0.0).to(tl.float32)
    # As the next layer will read it.
    value = value.to(out.dtype.element_ty)
    tl.store(out + row * K + k, value, mask=k < K)
    value = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / K + eps)
    value = value * scale * tl.load(weight + k, mask=k < K, other=0.0).to(tl.float32)
    tl.store(normed + row * K + k, value.to(normed.dtype.element_ty), mask=k < K)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, K] over its root mean square, times `weight` [K]; rounded once."""
    out = torch.empty_like(x)
    programs(_norm, x.shape[0])(x, weight, out, eps, K=x.shape[1], BLOCK_K=power_of_two(x.shape[1]), num_warps=4)
    return out


def add_norm(
    x: torch.Tensor, parts: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, K] plus the sum of `parts` [S, T, K], and the norm of that."""
    out, normed = torch.empty_like(x), torch.empty_like(x)
    programs(_add_norm, x.shape[0])(
        x,
        parts,
        weight,
        out,
        normed,
        eps,
        parts.stride(0),
        K=x.shape[1],
        SPLIT=parts.shape[0],
        BLOCK_K=power_of_two(x.shape[1]),
        num_warps=4,
    )
    return out, normed
