"""The thinker's prompt as its step sees it: token ids, positions, and where media features go.

Computed once a request, on the CPU. Must not run a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stages.models.qwen3_omni.encoders import Features, Kind
from stages.models.qwen3_omni.processing import ModelInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """`ids` [n]; `positions` [3, n] of multimodal rope, and `delta`, which is added to the index of every later token;
    `places` [m], the indices of media tokens in order, and `kinds` [m], what each of them stands for.

    Positions may be fractions: a video's steps in time are as long as its rate makes them.
    """

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.float32]
    delta: float
    places: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, tokens: int, generated: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Ids [tokens] and positions [3, tokens] of the sequence from `start`: the prompt, then what was generated."""
        end, size = start + tokens, len(self.ids)
        if end <= size:
            return self.ids[start:end], self.positions[:, start:end]
        begin = max(start, size)
        later = np.array(generated[begin - size : end - size], dtype=np.int64)
        positions = np.broadcast_to(np.arange(begin, end, dtype=np.float32) + np.float32(self.delta), (3, end - begin))
        if start >= size:
            return later, positions
        return (
            np.concatenate((self.ids[start:], later)),
            np.concatenate((self.positions[:, start:], positions), axis=1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRows:
    """Features in the order of a prompt's media tokens: `embeds` [m, hidden] in the place of embeddings, and what the
    first layers add at visual tokens, `deepstack` [v, hidden] each. `visual` [m] says which tokens are visual."""

    embeds: torch.Tensor
    visual: npt.NDArray[np.bool_]
    deepstack: tuple[torch.Tensor, ...]

    def part(self, begin: int, end: int) -> "MediaRows":
        """The rows of media tokens `begin` to `end`."""
        first, last = int(self.visual[:begin].sum()), int(self.visual[:end].sum())
        return MediaRows(
            embeds=self.embeds[begin:end],
            visual=self.visual[begin:end],
            deepstack=tuple(layer[first:last] for layer in self.deepstack),
        )


def media_rows(prompt: Prompt, encoded: Sequence[tuple[Kind, Features]]) -> MediaRows:
    """Puts the features of each medium, given in the prompt's order within a kind, where its tokens are."""
    visual = prompt.kinds != "audio"
    some = encoded[0][1].embeds
    embeds = some.new_empty(len(prompt.places), some.shape[-1])
    layers = max(len(features.deepstack) for _, features in encoded)
    deepstack = some.new_empty(layers, int(visual.sum()), some.shape[-1])
    for kind in dict.fromkeys(kind for kind, _ in encoded):
        chosen = [features for own, features in encoded if own == kind]
        rows = torch.from_numpy(np.flatnonzero(prompt.kinds == kind))
        embeds[rows] = torch.cat([features.embeds for features in chosen])
        if kind != "audio":
            rows = torch.from_numpy(np.flatnonzero(prompt.kinds[visual] == kind))
            for layer in range(layers):
                deepstack[layer, rows] = torch.cat([features.deepstack[layer] for features in chosen])
    return MediaRows(embeds=embeds, visual=visual, deepstack=tuple(deepstack))


def read_prompt(module: Any, inputs: ModelInputs) -> Prompt:
    """`module` is transformers' thinker, for its `get_rope_index`."""
    config = module.config
    ids = inputs.input_ids.numpy()
    kinds = np.full(len(ids), "", dtype="<U5")
    for kind in ("image", "video", "audio"):
        kinds[ids == getattr(config, f"{kind}_token_id")] = kind
    places = np.flatnonzero(kinds)
    positions, delta = _positions(module, inputs)
    return Prompt(ids=ids, positions=positions, delta=delta, places=places, kinds=kinds[places])


def _positions(module: Any, inputs: ModelInputs) -> tuple[npt.NDArray[np.float32], float]:
    if inputs.image_grid_thw is None and inputs.video_grid_thw is None:
        plain = np.arange(len(inputs.input_ids), dtype=np.float32)
        return np.broadcast_to(plain, (3, len(plain))), 0.0
    ids = inputs.input_ids[None]
    positions, delta = module.get_rope_index(
        ids,
        image_grid_thw=inputs.image_grid_thw,
        video_grid_thw=inputs.video_grid_thw,
        attention_mask=torch.ones_like(ids),
        audio_seqlens=inputs.audio_lengths,
        second_per_grids=inputs.video_second_per_grid,
    )
    return positions[:, 0].float().numpy(), float(delta)
