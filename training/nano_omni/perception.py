"""Pictures and sounds as the thinker takes them, whole batches at once on the device: the arithmetic of transformers'
image processor and feature extractor, and the positions that `get_rope_index` gives."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F
from transformers.audio_utils import mel_filter_bank
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    apply_rotary_pos_emb_vision,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
)
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

from training.nano_image.captions import Scene
from training.nano_image.scenes import Painter

HEARD_RATE = 16_000
PATCH, MERGE, TIME_PATCH = 16, 2, 2
_WINDOW, HOP, _BINS = 400, 160, 128
_BAND, _MOMENT = 20, 10  # bins and frames, at most
_UNHEARD = -1e4  # added to the scores of what is not there
_WIDE = ((3, 4), (2, 5), (3, 5), (4, 5), (2, 6), (3, 6), (4, 6), (3, 7))
GRIDS = (*_WIDE, *((columns, rows) for rows, columns in _WIDE))
"""Rows and columns of tokens that transformers' image processor makes of pictures that are not square, up to about
1:2.6, where it scales all to the area of SIDE x SIDE."""


def patches(pixels: Any) -> Any:
    """float32 [pictures x patches, 3 x TIME_PATCH x PATCH x PATCH] of pixels [pictures, 3, height, width] in
    [-1, 1]."""
    count, channels, height, width = pixels.shape
    rows, columns = height // PATCH, width // PATCH
    blocks = pixels.view(count, channels, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH)
    blocks = blocks.permute(0, 2, 5, 3, 6, 1, 4, 7)[:, :, :, :, :, :, None]
    blocks = blocks.expand(-1, -1, -1, -1, -1, -1, TIME_PATCH, -1, -1)
    return blocks.reshape(count * rows * columns, channels * TIME_PATCH * PATCH * PATCH)


class Features(torch.nn.Module):
    """Log mel features as WhisperFeatureExtractor computes them for a clip without padding: float32 [..., _BINS,
    frames]."""

    def __init__(self) -> None:
        super().__init__()
        bank = mel_filter_bank(1 + _WINDOW // 2, _BINS, 0.0, 8000.0, HEARD_RATE, norm="slaney", mel_scale="slaney")
        self.register_buffer("bank", torch.from_numpy(bank).float().T)
        self.register_buffer("hann", torch.hann_window(_WINDOW))

    def forward(self, samples: Any) -> Any:
        """`samples` [..., n], float32 at HEARD_RATE; as many frames as whole hops."""
        power = torch.stft(samples, _WINDOW, HOP, window=self.hann, return_complex=True)[..., :-1].abs() ** 2
        heights = (self.bank @ power).clamp(min=1e-10).log10()
        return (torch.maximum(heights, heights.amax((-2, -1), keepdim=True) - 8.0) + 4.0) / 4.0


def masked(features: Any) -> Any:
    """`features` [clips, _BINS, frames] without a random band of each and a random moment, for training (SpecAugment,
    Park et al., 2019)."""
    for most, shape in ((_BAND, (-1, 1)), (_MOMENT, (1, -1))):
        size = features.shape[1 if shape[1] == 1 else 2]
        chance = torch.rand(2, len(features), 1, 1, device=features.device)
        width = most * chance[0]
        place = torch.arange(size, device=features.device).view(shape) - chance[1] * (size - width)
        features = features * ((place < 0) | (place >= width))
    return features


def framed(pixels: Any, grid: tuple[int, int]) -> Any:
    """Square pictures [pictures, 3, side, side] as ones of another `grid`: drawn out to fill it, or in shape with more
    of the ground around them, and all between."""
    count, (height, width) = len(pixels), (PATCH * MERGE * cells for cells in grid)
    size = torch.tensor((width, height), device=pixels.device)
    chance = torch.rand(2, count, 1, device=pixels.device)
    kept = (1.7 * chance[0] - 0.4).clamp(min=0)  # 0: fills it, 1: in shape; more, since the processor draws out as well
    share = (size.amin() / size) ** kept
    theta = torch.zeros(count, 2, 3, device=pixels.device)
    theta[:, 0, 0], theta[:, 1, 1] = (1 / share).unbind(1)
    theta[:, :, 2] = (chance[1] - 0.5) * 0.6 * (1 - share) / share
    # Twice as large, then halved: what is made smaller is averaged.
    around = F.affine_grid(theta, [count, 3, 2 * height, 2 * width], align_corners=False)
    return F.avg_pool2d(F.grid_sample(pixels, around, padding_mode="border", align_corners=False), 2)


def in_shape(painter: Painter, scenes: Sequence[Scene], generator: torch.Generator, grid: tuple[int, int]) -> Any:
    """Scenes as pictures of `grid` that were made for it: things in about their own shape, two of them far apart."""
    rows, columns = (2 * PATCH * MERGE * cells for cells in grid)
    return F.avg_pool2d(painter.paint(scenes, generator, (rows, columns)), 2)


def see(tower: Any, pixels: Any, block: Callable[..., Any]) -> tuple[Any, list[Any]]:
    """What the vision tower gives, and its deepstack's layers: each [pictures, tokens, width]. One batched attention,
    where transformers' own forward goes picture by picture. `block` is `seen_block`, or that compiled."""
    count, (height, width) = len(pixels), pixels.shape[-2:]
    interpolation = (tower.num_grid_per_side, tower.interpolation_mode, tower.interpolation_align_corners)
    places, weights, patch_positions = _geometry(height, width, pixels.device, *interpolation)
    filters = tower.patch_embed.proj
    hidden = F.linear(patches(pixels), filters.weight.flatten(1), filters.bias).view(count, -1, filters.out_channels)
    hidden = hidden + (tower.pos_embed(places) * weights[:, :, None]).sum(1)
    turns = tower.rotary_pos_emb(hidden, patch_positions)
    deep = []
    for number, module in enumerate(tower.blocks):
        hidden = block(module, hidden, *turns)
        if number in tower.deepstack_visual_indexes:
            merger = tower.merger_list[tower.deepstack_visual_indexes.index(number)]
            deep.append(merger(hidden).view(count, picture_tokens(height, width), -1))
    return tower.merger(hidden).view(count, picture_tokens(height, width), -1), deep


@cache  # what is copied from the host makes it wait for the device
def _geometry(
    height: int, width: int, device: Any, per_side: int, mode: str, align_corners: bool
) -> tuple[Any, Any, Any]:
    grid = torch.tensor([[1, height // PATCH, width // PATCH]])
    places, weights = get_vision_interpolation_indices_and_weights(
        grid,
        num_grid_per_side=per_side,
        mode=mode,
        align_corners=align_corners,
        spatial_merge_size=MERGE,
    )
    return places.to(device), weights.to(device), get_vision_position_ids(grid, MERGE).to(device)


def seen_block(block: Any, hidden: Any, cos: Any, sin: Any) -> Any:
    inner, attention = block.norm1(hidden), block.attn
    query, key, value = attention.qkv(inner).unflatten(-1, (3, attention.num_heads, -1)).unbind(2)
    query, key = apply_rotary_pos_emb_vision(query, key, cos, sin)
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    found = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    hidden = hidden + attention.proj(found)
    return hidden + block.mlp(block.norm2(hidden))


def hear(tower: Any, features: Any, tokens: Any) -> Any:
    """What the audio tower gives [clips, most tokens, width] for `features` [clips, _BINS, whole chunks of frames], of
    which `tokens` [clips] are real. At most one window of attention (8 s); as transformers' own forward, of a clip of
    more than a chunk."""
    count, chunk = len(features), 2 * tower.n_window
    hidden = features.unflatten(2, (-1, chunk)).transpose(1, 2).flatten(0, 1)[:, None]
    for convolution in (tower.conv2d1, tower.conv2d2, tower.conv2d3):
        hidden = F.gelu(convolution(hidden))
    hidden = tower.conv_out(hidden.permute(0, 3, 1, 2).flatten(2))
    hidden = hidden + tower.positional_embedding.positional_embedding[: hidden.shape[1]]
    hidden = hidden.reshape(count, -1, hidden.shape[-1])
    unreal = torch.arange(hidden.shape[1], device=hidden.device) >= tokens[:, None]
    # Finite, so that no row's attention can be 0 / 0.
    mask = torch.zeros_like(unreal, dtype=hidden.dtype).masked_fill(unreal, _UNHEARD)[:, None, None]
    for layer in tower.layers:
        hidden = _heard_layer(layer, hidden, mask)
    return tower.proj2(tower.act(tower.proj1(tower.ln_post(hidden))))


def _heard_layer(layer: Any, hidden: Any, mask: Any) -> Any:
    inner, attention = layer.self_attn_layer_norm(hidden), layer.self_attn
    query, key, value = (
        projection(inner).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
    hidden = hidden + attention.out_proj(found)
    return hidden + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(hidden))))


def heard_tokens(frames: Any, window: int = 50) -> Any:
    """Thinker tokens of clips of so many mel frames (an integer tensor or an int)."""
    return _get_feat_extract_output_lengths(frames, window)


def grid_of(height: int, width: int) -> tuple[int, int]:
    """Rows and columns of a picture's tokens."""
    return height // PATCH // MERGE, width // PATCH // MERGE


def picture_tokens(height: int, width: int) -> int:
    rows, columns = grid_of(height, width)
    return rows * columns


def positions(place: Any, grid: tuple[int, int]) -> Any:
    """Three positions of each token, [3, rows, columns], for `place` [rows, columns], which is 0 where the picture of
    `grid` begins: counted from there."""
    rows, columns = grid
    after = place - rows * columns + max(grid)
    plain = torch.where(place < rows * columns, place, after)
    inside = (place >= 0) & (place < rows * columns)
    cells = (torch.zeros_like(place), place // columns, place % columns)
    return torch.stack([torch.where(inside, cell, plain) for cell in cells])
