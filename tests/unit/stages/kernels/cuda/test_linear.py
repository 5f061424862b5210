"""Projections and norms are what they are spelled out to be, whatever the number of rows."""

import pytest
import torch
from torch.nn.functional import silu

from stages.kernels.cuda.linear import FEW_ROWS, gated_products, matvec, products
from stages.kernels.cuda.norm import add_norm, rms_norm

EPS = 1e-6
SHAPES = [(64, 48), (40, 130), (1030, 24)]


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_one_row(k: int, n: int, device: torch.device) -> None:
    x, weight = torch.randn(1, k, device=device), torch.randn(2 * n, k, device=device) / k**0.5
    norm, residual = torch.rand(k, device=device) + 0.5, torch.randn(1, 2 * n, device=device)
    torch.testing.assert_close(matvec(x, weight), x @ weight.T, rtol=1e-4, atol=1e-4)
    expected = normed(x, norm) @ weight.T
    found = matvec(x, weight, norm=norm, eps=EPS, residual=residual)
    torch.testing.assert_close(found, expected + residual, rtol=1e-4, atol=1e-4)
    gate, up = expected.chunk(2, -1)
    found = matvec(x, weight, norm=norm, eps=EPS, gated=True)
    torch.testing.assert_close(found, silu(gate) * up, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [2, 20, FEW_ROWS + 1])
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_rows(rows: int, k: int, n: int, device: torch.device) -> None:
    x, weight = torch.randn(rows, k, device=device), torch.randn(2 * n, k, device=device) / k**0.5
    expected = x @ weight.T
    parts = products(x, weight)
    torch.testing.assert_close(parts.float().sum(0), expected, rtol=1e-4, atol=1e-4)
    gate, up = expected.chunk(2, -1)
    torch.testing.assert_close(gated_products(x, weight), silu(gate) * up, rtol=1e-4, atol=1e-4)
    residual, norm = torch.randn(rows, 2 * n, device=device), torch.rand(2 * n, device=device) + 0.5
    total, scaled = add_norm(residual, parts, norm, EPS)
    torch.testing.assert_close(total, expected + residual, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scaled, normed(expected + residual, norm), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rms_norm(residual, norm, EPS), normed(residual, norm), rtol=1e-5, atol=1e-5)
