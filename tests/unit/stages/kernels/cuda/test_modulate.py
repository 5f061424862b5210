"""What the kernel makes of both streams is what torch makes of each."""

import pytest
import torch

from stages.kernels.cuda.modulate import modulate
from stages.models.qwen_image.denoiser import _modulated

EPS, K = 1e-6, 48


@pytest.mark.parametrize("told", [1, 5])
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_both_streams(told: int, added: bool, dtype: torch.dtype, within: float, device: torch.device) -> None:
    def pair() -> list[torch.Tensor]:
        return [torch.randn(3, tokens, K, device=device, dtype=dtype) for tokens in (6, told)]

    streams, updates = pair(), pair()
    before, after = torch.randn(3, 4, 2, 2, 3, K, device=device, dtype=dtype)[:, 1].unbind(2)
    more = (updates, before) if added else ()
    exact = [each.float().clone() for each in streams]
    expected = _modulated(exact, after.float(), EPS, *([each.float() for each in updates], before.float())[: len(more)])
    found = modulate(streams, after, EPS, *more)
    for stream, mine in zip([*exact, *expected], [*streams, *found], strict=True):
        torch.testing.assert_close(mine.float(), stream, rtol=within, atol=2 * within)
