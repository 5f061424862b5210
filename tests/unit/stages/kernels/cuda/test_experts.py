"""Grouped experts are the sum that `stages.kernels.experts` computes; rows without experts are left out."""

import pytest
import torch

from stages.kernels.cuda.experts import experts, experts_of_rows
from stages.kernels.cuda.grouping import group
from stages.kernels.experts import experts as reference

SIZES = [(4, 2, 64, 32), (6, 4, 48, 24), (128, 8, 32, 16)]


def case(rows: int, count: int, choices: int, h: int, inner: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    ids = torch.stack([torch.randperm(count)[:choices] for _ in range(rows)]).int()
    tensors = (
        torch.randn(rows, h),
        torch.randn(count, 2 * inner, h) / h**0.5,
        torch.randn(count, h, inner) / inner**0.5,
        ids,
        torch.rand(rows, choices),
    )
    return tuple(tensor.to(device) for tensor in tensors)


def spelled_out(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    gate_up, down, ids, weights = (tensor.cpu() for tensor in rest)
    return reference(x.cpu(), gate_up, down, ids.clamp_min(0).long(), weights * (ids >= 0)).to(x.device)


@pytest.mark.parametrize("rows", [1, 5, 150])
@pytest.mark.parametrize(("count", "choices", "h", "inner"), SIZES)
def test_equal_to_the_reference(rows: int, count: int, choices: int, h: int, inner: int, device: torch.device) -> None:
    args = case(rows, count, choices, h, inner, device)
    torch.testing.assert_close(experts(*args), spelled_out(*args), rtol=1e-4, atol=1e-5)


def test_padding_rows_have_no_experts_and_the_sum_and_its_norm_go_with_it(device: torch.device) -> None:
    x, gate_up, down, ids, weights = case(9, 6, 4, 48, 24, device)
    ids[4] = -1
    residual, norm = torch.randn_like(x), torch.rand(48, device=device) + 0.5
    total, normed = experts_of_rows(x, gate_up, down, ids, weights, residual=residual, norm=norm, eps=1e-6)
    expected = residual + spelled_out(x, gate_up, down, ids, weights)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-5)
    scale = torch.rsqrt(expected.pow(2).mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(normed, expected * scale * norm, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "block_m"), [(3, 16), (40, 16), (200, 32)])
def test_every_pair_lies_in_exactly_one_tile_of_its_expert(rows: int, block_m: int, device: torch.device) -> None:
    """200 rows of 8 choices are more than one launch counts at once."""
    ids = torch.randint(0, 100, (rows, 8), device=device, dtype=torch.int32)
    plan = group(ids, 128, block_m)
    assert torch.equal(plan.order.long(), ids.flatten().long().argsort(stable=True))
    covered = torch.zeros(ids.numel(), dtype=torch.int64)
    experts_of, order = ids.flatten().cpu(), plan.order.long().cpu()
    for expert, first, end in plan.tiles.tolist():
        if expert >= 0:
            places = order[first : min(end, first + block_m)]
            assert len(places)
            assert (experts_of[places] == expert).all()
            covered[places] += 1
    assert (covered == 1).all()
