"""Pictures and sounds as the thinker takes them, whole batches at once on the device: the arithmetic of transformers'
image processor and feature extractor, and the positions that `get_rope_index` gives."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.audio_utils import mel_filter_bank
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

HEARD_RATE = 16_000
PATCH, MERGE, TIME_PATCH = 16, 2, 2
_WINDOW, _HOP, _BINS = 400, 160, 128


def patches(pixels: Any) -> Any:
    """float32 [pictures x patches, 3 x TIME_PATCH x PATCH x PATCH] of pixels [pictures, 3, side, side] in [-1, 1]."""
    count, channels, height, width = pixels.shape
    rows, columns = height // PATCH, width // PATCH
    blocks = pixels.view(count, channels, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH)
    blocks = blocks.permute(0, 2, 5, 3, 6, 1, 4, 7)[:, :, :, :, :, :, None]
    blocks = blocks.expand(-1, -1, -1, -1, -1, -1, TIME_PATCH, -1, -1)
    return blocks.reshape(count * rows * columns, channels * TIME_PATCH * PATCH * PATCH)


class Features(torch.nn.Module):
    """Log mel features as WhisperFeatureExtractor computes them for a clip without padding: float32 [_BINS, frames]."""

    def __init__(self) -> None:
        super().__init__()
        bank = mel_filter_bank(1 + _WINDOW // 2, _BINS, 0.0, 8000.0, HEARD_RATE, norm="slaney", mel_scale="slaney")
        self.register_buffer("bank", torch.from_numpy(bank).float().T)
        self.register_buffer("hann", torch.hann_window(_WINDOW))

    def forward(self, samples: Any) -> Any:
        """`samples` [n], float32 at HEARD_RATE; as many frames as whole hops."""
        power = torch.stft(samples, _WINDOW, _HOP, window=self.hann, return_complex=True)[..., :-1].abs() ** 2
        heights = (self.bank @ power).clamp(min=1e-10).log10()
        return (torch.maximum(heights, heights.max() - 8.0) + 4.0) / 4.0


def heard_tokens(frames: int, window: int) -> int:
    """Thinker tokens of a clip of so many mel frames."""
    return int(_get_feat_extract_output_lengths(torch.tensor(frames), window))


def picture_tokens(side: int) -> int:
    return (side // PATCH // MERGE) ** 2


def positions(length: int, start: int | None, picture_side: int) -> Any:
    """Three positions [3, length] a token: those of text, but for a picture of `picture_side` pixels whose first token
    is at `start` (None: there is none)."""
    plain = torch.arange(length).expand(3, -1)
    if start is None:
        return plain
    side = picture_side // PATCH // MERGE
    cells = torch.arange(side * side)
    inside = start + torch.stack([torch.zeros_like(cells), cells // side, cells % side])
    after = torch.arange(length - start - len(cells)).expand(3, -1) + start + side
    return torch.cat([plain[:, :start], inside, after], dim=1)


def clips(features: Features, sounds: Sequence[Any]) -> tuple[Any, Any]:
    """Features [clips, _BINS, most frames] and their mask [clips, most frames]."""
    found = [features(sound) for sound in sounds]
    most = max(one.shape[1] for one in found)
    stacked = torch.stack([torch.nn.functional.pad(one, (0, most - one.shape[1])) for one in found])
    lengths = torch.tensor([one.shape[1] for one in found], device=stacked.device)
    return stacked, torch.arange(most, device=stacked.device) < lengths[:, None]
