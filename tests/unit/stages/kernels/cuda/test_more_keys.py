"""What the kernel adds to attention over a picture is what attention over picture and text finds at once."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from stages.kernels.cuda.more_keys import BLOCK_K, BLOCK_T, attended_as_well


@pytest.mark.parametrize("shown", [BLOCK_T, BLOCK_T + 5])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float16, 1e-2)])
def test_texts_are_attended_to_as_well(shown: int, dtype: torch.dtype, within: float, device: torch.device) -> None:
    told, counts = BLOCK_K + 7, [1, BLOCK_K, BLOCK_K + 7]
    query, key = (2 * torch.randn(2, 3, shown + told, 2, 16, device=device)).to(dtype)
    # As one product leaves them.
    picture, text = (torch.randn(3, n, 3, 2, 16, device=device).to(dtype)[:, :, 2] for n in (shown, told))
    score = torch.einsum("rthd,rkhd->rhtk", query.float(), key[:, :shown].float()) / 4
    found = torch.einsum("rhtk,rkhd->rthd", score.softmax(-1), picture.float()).to(dtype).contiguous()
    lengths = torch.tensor(counts, dtype=torch.int32, device=device)
    both = torch.cat(attended_as_well(query, key, text, found, score.logsumexp(-1), lengths), dim=1)
    whole = torch.cat([picture, text], dim=1)
    for row, count in enumerate(counts):
        heads = (
            each[row].float().transpose(0, 1) for each in (query, key[:, : shown + count], whole[:, : shown + count])
        )
        exact = scaled_dot_product_attention(*heads).transpose(0, 1)
        torch.testing.assert_close(both[row].float(), exact, rtol=0, atol=within)
