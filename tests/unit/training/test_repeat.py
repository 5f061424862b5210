"""A step of training: what it makes small, and what it leaves alone."""

import math

import pytest
import torch

from training.repeat import Step


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_step_whose_gradients_are_not_finite_changes_nothing_and_counts(bad):
    value = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    other = torch.nn.Parameter(torch.ones(1))
    step = Step(
        lambda scale: torch.stack([(scale * value).sum(), other.sum()]), [value, other], device="cpu", record=True
    )
    right = torch.optim.AdamW([value.detach().clone().requires_grad_()], 0.1, betas=(0.9, 0.99), weight_decay=0.01)
    alike = right.param_groups[0]["params"][0]
    for scale in (1.0, bad, 3.0, 2.0):
        found = step(0.1, scale)
        assert found.shape == (2,)
        if not math.isfinite(scale):
            continue
        alike.grad = torch.full((2,), scale) / max(1.0, (2 * scale**2 + 1) ** 0.5)
        right.step()
    torch.testing.assert_close(value, alike)
    assert step.skipped.item() == 1
