"""Routed experts are the sum that their definition spells out, however many there are."""

import pytest
import torch

from stages.kernels.experts import experts


def spelled_out(
    hidden: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    out = torch.zeros_like(hidden, dtype=torch.float64)
    for token, (chosen, shares) in enumerate(zip(ids.tolist(), weights.tolist(), strict=True)):
        for expert, share in zip(chosen, shares, strict=True):
            gate, up = (gate_up[expert].double() @ hidden[token].double()).chunk(2)
            out[token] += share * (down[expert].double() @ (torch.nn.functional.silu(gate) * up))
    return out.float()


@pytest.mark.parametrize("tokens", [1, 2, 17])
@pytest.mark.parametrize(("number", "each"), [(4, 2), (1, 1), (32, 3)])
def test_equal_to_the_definition(tokens: int, number: int, each: int) -> None:
    generator = torch.Generator().manual_seed(tokens * number)
    hidden = torch.randn(tokens, 24, generator=generator)
    gate_up = torch.randn(number, 2 * 10, 24, generator=generator) / 5
    down = torch.randn(number, 24, 10, generator=generator) / 5
    weights, ids = torch.rand(tokens, number, generator=generator).topk(each)
    expected = spelled_out(hidden, gate_up, down, ids, weights)
    torch.testing.assert_close(experts(hidden, gate_up, down, ids, weights), expected, rtol=1e-5, atol=1e-5)
