"""Qwen-Image's transformer with less between its products than diffusers' has, told what timesteps do to it. Knows no
request.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from stages.models.qwen_image.attention import joined_attention, ragged_attention
from stages.runners.compiled_blocks import fuse_activations


class Denoiser:
    """Over a QwenImageTransformer2DModel (diffusers 0.42) without `zero_cond_t`, with its arithmetic but for rounding;
    on a GPU it rounds less often. The layers of queries, keys and values become views of one, of pictures and of texts.
    """

    def __init__(self, transformer: Any) -> None:
        self._transformer = transformer
        self._heads = [
            (_as_one(attn.to_q, attn.to_k, attn.to_v), _as_one(attn.add_q_proj, attn.add_k_proj, attn.add_v_proj))
            for attn in (block.attn for block in transformer.transformer_blocks)
        ]
        fuse_activations(transformer)
        if transformer.proj_out.weight.is_cuda:
            torch.cuda.empty_cache()  # of the layers' own weights

    def __call__(
        self,
        latents: torch.Tensor,
        texts: torch.Tensor,
        lengths: Sequence[int] | torch.Tensor,
        grids: Sequence[Sequence[tuple[int, int, int]]],
        told: torch.Tensor,
    ) -> torch.Tensor:
        """Noise in `latents` [rows, tokens, channels], in their shape. `texts` [rows, tokens, features] of `lengths`
        are padded on the right, `grids` its `img_shapes`, and `told` [rows, blocks + 1, 12 D] rows of a `Modulation`.
        Nothing that is launched depends on lengths on the device, int32 [rows].
        """
        if latents.is_cuda:
            # Triton is not on every machine.
            from stages.kernels.cuda.modulate import modulate
        else:
            modulate = _modulated
        transformer = self._transformer
        eps, blocks = transformer.norm_out.norm.eps, transformer.transformer_blocks
        # Of attention and of what feeds forward in each block, and then of the last norm: [rows, 2, 3, D].
        told = told.unflatten(-1, (2, 2, 3, -1))
        parts = [told[:, number // 2, :, number % 2] for number in range(2 * len(blocks) + 1)]
        places = transformer.pos_embed(grids, max_txt_seq_len=texts.shape[1], device=latents.device)
        streams = [transformer.img_in(latents), transformer.txt_in(transformer.txt_norm(texts))]
        normed = modulate(streams, parts[0], eps)
        for number, (before, after) in enumerate(pairwise(parts)):
            block = blocks[number // 2]
            if number % 2 == 0:
                updates = _attended(block.attn, self._heads[number // 2], normed, places, lengths)
            else:
                updates = [layers(each) for layers, each in zip((block.img_mlp, block.txt_mlp), normed, strict=True)]
            normed = modulate(streams, after, eps, updates, before)
        predicted: torch.Tensor = transformer.proj_out(normed[0])
        return predicted


def _as_one(*layers: nn.Linear) -> nn.Linear:
    """A layer that puts out what all of them do, one after the other. Their weights become parts of its own."""
    whole = nn.Linear(layers[0].in_features, sum(layer.out_features for layer in layers), device="meta")
    for name in ("weight", "bias"):
        own = [getattr(layer, name) for layer in layers]
        joined = torch.cat([each.data for each in own])
        setattr(whole, name, nn.Parameter(joined, requires_grad=False))
        for each, part in zip(own, joined.split([len(each) for each in own]), strict=True):
            each.data = part
    return whole


def _attended(
    attn: Any,
    layers: Sequence[nn.Linear],
    normed: Sequence[torch.Tensor],
    places: Sequence[torch.Tensor],
    lengths: Sequence[int] | torch.Tensor,
) -> list[torch.Tensor]:
    pictures, texts = (
        layer(each).unflatten(-1, (3, attn.heads, -1)).unbind(2) for layer, each in zip(layers, normed, strict=True)
    )
    norms = [norm.weight for norm in (attn.norm_added_q, attn.norm_added_k, attn.norm_q, attn.norm_k)]
    attend: Any = ragged_attention if isinstance(lengths, torch.Tensor) else joined_attention
    told, shown = attend(texts, pictures, norms, places[::-1], attn.norm_q.eps, lengths)
    return [attn.to_out[0](shown.flatten(2)), attn.to_add_out(told.flatten(2))]


def _modulated(
    streams: Sequence[torch.Tensor],
    after: torch.Tensor,
    eps: float,
    updates: Sequence[torch.Tensor] = (),
    before: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """As the kernel's `modulate`, with diffusers' arithmetic."""
    normed = []
    for at, stream in enumerate(streams):
        if before is not None:
            stream += before[:, at, 2:] * updates[at]
        shift, scale = after[:, at, :1], after[:, at, 1:2]
        normed.append(functional.layer_norm(stream, stream.shape[-1:], eps=eps) * (1 + scale) + shift)
    return normed
