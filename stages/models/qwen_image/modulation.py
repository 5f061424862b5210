"""What its timestep does to the blocks of Qwen-Image's transformer, for several steps of a schedule at once: for a step
alone, a third of all weights would be read to modulate one row or two. Knows no request.
"""

from typing import Any

import torch
from torch.nn import functional

STEPS = 16
"""At once; they take 72 MB at the published size."""


class Modulation:
    """Of a QwenImageTransformer2DModel (diffusers 0.42) without `zero_cond_t`."""

    def __init__(self, transformer: Any) -> None:
        self._embed, self._last = transformer.time_text_embed, transformer.norm_out.linear
        # Behind an activation that is the same for all.
        self._layers = [(block.img_mod[1], block.txt_mod[1]) for block in transformer.transformer_blocks]

    def __call__(self, timesteps: torch.Tensor) -> torch.Tensor:
        """Of timesteps [steps] between 0 and 1, in the dtype of latents, all modulations [steps, blocks + 1, 12 D]: of
        pictures and of texts 6 D each, twice shift, scale and gate; at the end shift and scale of the last norm."""
        embedded = functional.silu(self._embed(timesteps, timesteps))  # the second for its dtype
        width = embedded.shape[-1]
        found = embedded.new_zeros(len(timesteps), len(self._layers) + 1, 12 * width)
        for place, layers in enumerate(self._layers):
            for part, layer in zip(found[:, place].chunk(2, -1), layers, strict=True):
                part.copy_(layer(embedded))
        scale, shift = self._last(embedded).chunk(2, -1)
        found[:, -1, : 2 * width] = torch.cat([shift, scale], -1)
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
