"""Heads joined by the kernel are those that torch norms, rotates and concatenates."""

import pytest
import torch

from stages.kernels.cuda.joint import BLOCK_T, join_heads
from stages.models.qwen_image.attention import _ready

EPS = 1e-6


def heads(rows: int, tokens: int, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    """Side by side in memory, as one product leaves them."""
    return list(torch.randn(rows, tokens, 3, 2, 16, device=device, dtype=dtype).unbind(2))


@pytest.mark.parametrize("told", [1, BLOCK_T, BLOCK_T + 3])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_heads_are_joined(told: int, dtype: torch.dtype, within: float, device: torch.device) -> None:
    texts, pictures = heads(3, BLOCK_T + 5, device, dtype), heads(3, 2 * BLOCK_T - 1, device, dtype)
    norms = [torch.rand(16, device=device, dtype=dtype) + 0.5 for _ in range(4)]
    angles = [torch.randn(each[0].shape[1], 8, device=device) for each in (texts, pictures)]
    places = [torch.polar(torch.ones_like(angle), angle) for angle in angles]
    mine = [each[1:, :told] for each in texts], [each[1:] for each in pictures]
    found = join_heads(*mine, norms, places, EPS)
    right = _ready([each.float() for each in texts], [norm.float() for norm in norms[:2]], places[0], EPS)
    beside = _ready([each.float() for each in pictures], [norm.float() for norm in norms[2:]], places[1], EPS)
    for at, (text, picture) in enumerate(zip(right, beside, strict=True)):
        joined = torch.cat([text[1:, :told], picture[1:]], dim=1)
        torch.testing.assert_close(found[at].float(), joined, rtol=within, atol=within)
