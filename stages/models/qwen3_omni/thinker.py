"""The Thinker: packed rows of prompts and of generated tokens in, hidden states and logits out.

Knows tokens, positions and media features; neither requests nor sampling. All state is the cache's: a step is a
function of its tensors, and one without media has no shape or branch that depends on their contents.
"""

from dataclasses import dataclass
from typing import Any

import torch

from stages.models.qwen3_omni.encoders import Encoders
from stages.models.qwen3_omni.modules import ThinkerParts
from stages.models.qwen3_omni.packed import PackedDecoder, PagedStep
from stages.models.qwen3_omni.processing import ModelInputs
from stages.models.qwen3_omni.prompt import MediaRows, Prompt, read_prompt
from stages.runners.kv_cache import PagedCache, StepLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaStep:
    """The media tokens of a step, in packed order: their `places` [m] int64 and `embeds` [m, hidden]; the places of
    those that are visual [v] int64, and what the first layers add there, `deepstack` [v, hidden] each."""

    places: torch.Tensor
    embeds: torch.Tensor
    visual: torch.Tensor
    deepstack: tuple[torch.Tensor, ...]

    @staticmethod
    def of(parts: list[tuple[torch.Tensor, MediaRows]]) -> "MediaStep":
        """From each row's places and features."""
        layers = max(len(rows.deepstack) for _, rows in parts)
        device = parts[0][1].embeds.device
        visual = [(places[torch.from_numpy(rows.visual)], rows) for places, rows in parts if rows.deepstack]
        return MediaStep(
            places=torch.cat([places for places, _ in parts]).to(device),
            embeds=torch.cat([rows.embeds for _, rows in parts]),
            visual=torch.cat([places for places, _ in visual] or [torch.empty(0, dtype=torch.int64)]).to(device),
            deepstack=tuple(torch.cat([rows.deepstack[layer] for _, rows in visual]) for layer in range(layers)),
        )


class Thinker:
    """transformers' thinker over a paged cache. `accept_layer` indexes hidden states; 0 is the embeddings."""

    def __init__(self, module: Any, cache: PagedCache, *, accept_layer: int, device: torch.device) -> None:
        self._module = module
        parts = ThinkerParts.of(module)
        self._text = parts.text
        self._lm_head = parts.lm_head
        self._decoder = PackedDecoder(parts.text)
        self._cache = cache
        self._accept_layer = accept_layer
        self.encoders = Encoders(
            parts.visual, parts.audio, n_window=int(module.config.audio_config.n_window), device=device
        )

    def prompt(self, inputs: ModelInputs) -> Prompt:
        return read_prompt(self._module, inputs)

    def decode(self, ids: torch.Tensor, positions: torch.Tensor, layout: StepLayout) -> torch.Tensor:
        """One token a row: logits [R, vocabulary] after `ids` [R] int64 at `positions` [R] float32."""
        return self.logits(self.hidden(ids, positions.expand(3, -1), layout))

    def prefill(
        self, ids: torch.Tensor, positions: torch.Tensor, layout: StepLayout, places: torch.Tensor
    ) -> torch.Tensor:
        """Logits [len(places), vocabulary] after the tokens at `places` of packed `ids` [T] at `positions` [3, T]."""
        return self.logits(self.hidden(ids, positions, layout)[places])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, vocabulary] for the last hidden states [R, hidden] of rows."""
        logits: torch.Tensor = self._lm_head(hidden)
        return logits

    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, layout: StepLayout) -> torch.Tensor:
        """Hidden states [T, hidden] of packed `ids` [T] at `positions` [3, T]."""
        embeds = self._text.embed_tokens(ids)[None]
        return self._decoder(embeds, positions[:, None], PagedStep(self._cache, layout))[0]

    def hidden_with_media(
        self, ids: torch.Tensor, positions: torch.Tensor, layout: StepLayout, media: MediaStep
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same with media features in their places; also the accepted hidden states [m, hidden] of media tokens."""
        embeds = self._text.embed_tokens(ids)
        embeds = embeds.index_copy(0, media.places, media.embeds.to(embeds.dtype))[None]
        extra: dict[str, Any] = {}
        if media.deepstack:
            mask = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
            mask[media.visual] = True
            extra = {"visual_pos_masks": mask[None], "deepstack_visual_embeds": list(media.deepstack)}
        step = PagedStep(self._cache, layout)
        hidden, accepted = self._decoder.with_layer(self._accept_layer, embeds, positions[:, None], step, **extra)
        return hidden[0], accepted[0, media.places]
