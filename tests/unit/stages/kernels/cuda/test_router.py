"""Routing is transformers': softmax, the most likely experts, their share; a few rows are sorted by expert at once."""

import pytest
import torch

from stages.kernels.cuda.grouping import group
from stages.kernels.cuda.router import route, route_few

END = 90


@pytest.mark.parametrize(("count", "top", "renorm", "always"), [(6, 3, True, 0), (128, 8, True, 2), (10, 4, False, 1)])
def test_the_most_likely_experts(count: int, top: int, renorm: bool, always: int, device: torch.device) -> None:
    parts = torch.randn(3, 7, count + (always > 0), device=device)
    slots = torch.tensor([0, 1, END, 89, 5, 6, 7], device=device)
    ids, weights = route(parts, slots, END, experts=count, top=top, renorm=renorm, always=always)
    logits = parts.sum(0)
    likely, chosen = logits[:, :count].softmax(-1).topk(top)
    likely = likely / likely.sum(-1, keepdim=True) if renorm else likely
    live = slots < END
    assert torch.equal(ids[live, :top].long(), chosen[live])
    assert (ids[~live] == -1).all()
    torch.testing.assert_close(weights[:, :top], likely)
    if always:
        assert (ids[live, top:] == torch.arange(count, count + always, device=device)).all()
        torch.testing.assert_close(weights[:, top:], logits[:, count : count + 1].sigmoid().expand(-1, always))


@pytest.mark.parametrize(("rows", "count", "top", "always"), [(2, 6, 3, 2), (20, 128, 8, 0), (33, 128, 6, 2)])
@pytest.mark.parametrize("block_m", [16, 32])
def test_a_few_rows_at_once_are_the_same(
    rows: int, count: int, top: int, always: int, block_m: int, device: torch.device
) -> None:
    parts = torch.randn(2, rows, count + (always > 0), device=device)
    slots = torch.randint(0, 100, (rows,), device=device)
    how = {"experts": count, "top": top, "renorm": True, "always": always}
    ids, weights = route(parts, slots, END, **how)
    plan = group(ids, count + always, block_m)
    same_ids, same_weights, same_plan = route_few(parts, slots, END, block_m, **how)
    assert torch.equal(same_ids, ids)
    torch.testing.assert_close(same_weights, weights)
    pairs = int((ids >= 0).sum())
    assert torch.equal(same_plan.order[:pairs], plan.order[:pairs])
    used = plan.tiles[:, 0] >= 0
    assert torch.equal(same_plan.tiles[:, 0], plan.tiles[:, 0])
    assert torch.equal(same_plan.tiles[used], plan.tiles[used])
