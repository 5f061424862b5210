"""The decoder of Qwen-Image's VAE for pictures on a GPU. Its convolutions are of videos, and see two frames before a
picture's own, all zeros: the last frame of their kernels is enough. Channels lie innermost, and what passes through
memory passes fewer times. The result is diffusers' but for rounding, of which there is less.
"""

import copy
from functools import partial
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import (
    QwenImageCausalConv3d,
    QwenImageRMS_norm,
    QwenImageUpsample,
)
from torch import nn
from torch.nn import functional


def for_pictures(decoder: nn.Module) -> nn.Module:
    """A copy of the decoder that takes [rows, channels, 1, height, width] only, and no cache of frames."""
    flat = copy.deepcopy(decoder)
    parts: list[Any] = list(flat.modules())
    for part in parts:
        if isinstance(part, QwenImageCausalConv3d):
            part.weight = nn.Parameter(part.weight[:, :, -1].clone(), requires_grad=False)
            part.forward = partial(_convolved, part)
        elif isinstance(part, QwenImageRMS_norm):
            part.forward = partial(_normed, part)
        elif isinstance(part, QwenImageUpsample):
            part.forward = partial(nn.Upsample.forward, part)  # neighbours are copied, which needs no other dtype
    return flat.to(memory_format=torch.channels_last)


def _convolved(conv: Any, frame: torch.Tensor) -> torch.Tensor:
    beside, _, above, *_ = conv._padding
    return functional.conv2d(frame[:, :, 0], conv.weight, conv.bias, padding=(above, beside)).unsqueeze(2)


def _normed(norm: Any, x: torch.Tensor) -> torch.Tensor:
    """x / |x| * scale * gamma, in float32 until the last product."""
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float32).clamp_min_(1e-12)
    return torch.mul(x, norm.scale / length, out=torch.empty_like(x)).mul_(norm.gamma)
