"""The thinker's vision and audio towers, one medium a call, and a bounded cache of what they made.

A medium is named by its content, so the same picture in two turns or two requests is encoded once. Does not know
requests or prompts.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

import torch

from stages.models.qwen3_omni.processing import ModelInputs, audio_tokens

Kind = Literal["image", "video", "audio"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """One input of a tower, on the CPU. `values` are patches [patches, values] with their `grid` [3], or mel frames
    [bins, frames].

    `padded_to`: a clip shorter than the audio tower's window is padded to the longest such clip of its request, which
    changes its last features; it is part of what the medium is.
    """

    kind: Kind
    key: bytes
    values: torch.Tensor
    grid: torch.Tensor | None = None
    padded_to: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """`embeds` [tokens, hidden]; of visual media also `deepstack`, what each early layer adds [tokens, hidden]."""

    embeds: torch.Tensor
    deepstack: tuple[torch.Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in (self.embeds, *self.deepstack))


class FeatureCache:
    """The least recently used go first. What is larger than the whole cache is not kept."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._kept: OrderedDict[bytes, Features] = OrderedDict()
        self.nbytes = 0

    def get(self, key: bytes) -> Features | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: bytes, features: Features) -> None:
        if features.nbytes > self._capacity or key in self._kept:
            return
        self._kept[key] = features
        self.nbytes += features.nbytes
        while self.nbytes > self._capacity:
            self.nbytes -= self._kept.popitem(last=False)[1].nbytes


class Encoders:
    """`visual` and `audio` are transformers' towers. The audio tower works on windows of `2 * n_window` mel frames."""

    def __init__(self, visual: Any, audio: Any, *, n_window: int, device: torch.device) -> None:
        self._visual = visual
        self._audio = audio
        self._n_window = n_window
        self._device = device

    def media(self, inputs: ModelInputs) -> list[Medium]:
        """The media of a request: images, videos, clips, each kind in its order."""
        found = []
        for kind, values, grids in (
            ("image", inputs.pixel_values, inputs.image_grid_thw),
            ("video", inputs.pixel_values_videos, inputs.video_grid_thw),
        ):
            if values is not None and grids is not None:
                pieces = values.split(grids.prod(-1).tolist())
                found += [_medium(kind, piece, grid=grid) for piece, grid in zip(pieces, grids, strict=True)]
        if inputs.input_features is not None and inputs.audio_lengths is not None:
            lengths = inputs.audio_lengths.tolist()
            longest = min(max(lengths), 2 * self._n_window)
            for piece in inputs.input_features.split(lengths, dim=1):
                found.append(_medium("audio", piece, padded_to=longest if piece.shape[1] < longest else 0))
        return found

    def encode(self, medium: Medium) -> Features:
        if medium.grid is None:
            return self._encode_audio(medium)
        values = medium.values.to(self._device, self._visual.dtype)
        done = self._visual(values, grid_thw=medium.grid[None].to(self._device))
        return Features(embeds=done.pooler_output, deepstack=tuple(done.deepstack_features))

    def _encode_audio(self, medium: Medium) -> Features:
        clips = [medium.values]
        if medium.padded_to:
            # The tower pads all clips of a call to the longest, so a silent one makes it pad this one so far.
            clips.append(medium.values.new_zeros(len(medium.values), medium.padded_to))
        lengths = torch.tensor([clip.shape[1] for clip in clips], device=self._device)
        done = self._audio(torch.cat(clips, dim=1).to(self._device), feature_lens=lengths).last_hidden_state
        return Features(embeds=done[: audio_tokens(medium.values.shape[1], self._n_window)])


def _medium(kind: Any, values: torch.Tensor, *, grid: torch.Tensor | None = None, padded_to: int = 0) -> Medium:
    values = values.contiguous()
    about = (kind, tuple(values.shape), None if grid is None else tuple(grid.tolist()), padded_to)
    key = hashlib.blake2b(repr(about).encode(), digest_size=16)
    key.update(values.view(torch.uint8).numpy())
    return Medium(kind=kind, key=key.digest(), values=values, grid=grid, padded_to=padded_to)
