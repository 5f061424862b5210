"""One kernel draws what `stages.runners.sampler` draws."""

import pytest
import torch

from stages.kernels.cuda.draw import draw
from stages.runners.sampler import filtered, pick
from stages.runners.sampling import SamplingParams

ROWS, WIDTH = 6, 40


@pytest.mark.parametrize("vocabulary", [64, 100, 2048])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p", "temperature"),
    [(50, 0.8, 0.0, 1.0), (0, 1.0, 0.0, 1.0), (5, 1.0, 0.0, 0.7), (0, 0.5, 0.0, 1.3), (20, 0.9, 0.1, 1.0)],
)
def test_equal_to_the_sampler(
    vocabulary: int, top_k: int, top_p: float, min_p: float, temperature: float, device: torch.device
) -> None:
    """The smallest vocabulary has logits that tie; the numbers are also the ends of their range."""
    parts = torch.randn(2, ROWS, vocabulary, device=device) * 2
    parts = parts.round() if vocabulary == 64 else parts
    numbers = torch.rand(ROWS, 3, dtype=torch.float64, device=device)
    numbers[0], numbers[1] = 0, 1 - 2**-53
    greedy = torch.arange(ROWS, device=device) == 3
    table, norm = torch.randn(vocabulary, WIDTH, device=device), torch.rand(WIDTH, device=device) + 0.5
    codes = torch.full((ROWS, 3), -1, device=device)
    total = torch.ones(ROWS, WIDTH, device=device)
    params = SamplingParams(max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    embeds, normed = draw(
        parts, params, numbers, greedy, 1, table=table, norm=norm, eps=1e-6, codes=codes, total=total
    )  # fmt: skip

    def every_row(value: float) -> torch.Tensor:
        return torch.full((ROWS,), value, device=device)

    logits = parts.sum(0)
    widest = vocabulary if top_p < 1 and not top_k else max(top_k, 1)
    kept = filtered(
        logits / temperature,
        every_row(top_k).long(),
        every_row(top_p),
        every_row(min_p),
        widest=min(widest, vocabulary),
    )
    expected = torch.where(greedy, logits.argmax(-1), pick(kept, numbers[:, 1]))
    assert torch.equal(codes[:, 1], expected)
    assert (codes[:, [0, 2]] == -1).all()
    assert torch.equal(embeds, table[expected])
    torch.testing.assert_close(total, 1 + table[expected])
    scale = torch.rsqrt(embeds.pow(2).mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(normed, embeds * scale * norm, rtol=1e-4, atol=1e-5)
    draw(parts, params, None, None, 2, table=table, norm=norm, eps=1e-6, codes=codes, total=total)
    assert torch.equal(codes[:, 2], logits.argmax(-1))
