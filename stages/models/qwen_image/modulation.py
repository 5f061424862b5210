"""What its timestep does to the blocks of Qwen-Image's transformer, for several steps of a schedule at once: for a step
alone, a third of all weights would be read to modulate one row or two. Knows no request.
"""

from functools import partial
from types import MethodType
from typing import Any

import torch
from torch.nn import functional

STEPS = 16
"""At once; they take 72 MB at the published size."""


class Modulation:
    """From now on `transformer` takes, beside timesteps [rows], what they make of its blocks: rows of what a call
    gives."""

    def __init__(self, transformer: Any) -> None:
        self._embed, self._last = transformer.time_text_embed, transformer.norm_out.linear
        self._embed.forward = MethodType(_embedded, self._embed)
        transformer.norm_out.forward = MethodType(_normed, transformer.norm_out)
        self._layers = []
        for place, block in enumerate(transformer.transformer_blocks):
            block.register_forward_pre_hook(partial(_pick, place), with_kwargs=True)
            for layers, part in (block.img_mod, _of_pictures), (block.txt_mod, _of_texts):
                layers.forward = MethodType(part, layers)
                self._layers.append(layers[1])  # behind an activation that is the same for all

    def __call__(self, timesteps: torch.Tensor) -> torch.Tensor:
        """Of timesteps [steps] between 0 and 1, in the dtype of latents, all modulations [steps, blocks + 1, 12 D]: of
        pictures and of texts 6 D each, at the end 2 D of the last norm."""
        embedded = functional.silu(self._embed(timesteps, timesteps))  # the second for its dtype
        found = embedded.new_zeros(len(timesteps), len(self._layers) // 2 + 1, 12 * embedded.shape[-1])
        for place, layer in enumerate(self._layers):
            found[:, place // 2].chunk(2, -1)[place % 2].copy_(layer(embedded))
        found[:, -1, : self._last.out_features] = self._last(embedded)
        return found


class Times:
    """The modulations of a schedule's `timesteps` [steps], computed a few ahead."""

    def __init__(self, modulation: Modulation, timesteps: torch.Tensor) -> None:
        self._modulation = modulation
        self._timesteps = timesteps
        self._first = -STEPS
        self._rows: Any = ()

    def __call__(self, step: int) -> torch.Tensor:
        if not self._first <= step < self._first + STEPS:
            self._first = step - step % STEPS
            self._rows = self._modulation(self._timesteps[self._first : self._first + STEPS])
        row: torch.Tensor = self._rows[step - self._first]
        return row


def _pick(place: int, _: object, given: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A block's own part of what the transformer was given."""
    told = named["temb"]
    return given, {**named, "temb": told[:, place] if told.ndim > 2 else told}


def _embedded(embed: Any, told: torch.Tensor, *others: object) -> Any:
    return told if told.ndim > 1 else type(embed).forward(embed, told, *others)


def _of_pictures(layers: Any, told: torch.Tensor) -> Any:
    width = layers[1].in_features
    return layers[1](layers[0](told)) if told.shape[-1] == width else told[:, : 6 * width]


def _of_texts(layers: Any, told: torch.Tensor) -> Any:
    width = layers[1].in_features
    return layers[1](layers[0](told)) if told.shape[-1] == width else told[:, 6 * width :]


def _normed(last: Any, hidden: torch.Tensor, told: torch.Tensor) -> Any:
    """As diffusers' AdaLayerNormContinuous."""
    if told.ndim == 2:
        return type(last).forward(last, hidden, told)
    scale, shift = told[:, -1:, : last.linear.out_features].chunk(2, -1)
    return last.norm(hidden) * (1 + scale) + shift
