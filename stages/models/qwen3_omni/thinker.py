"""The Thinker: prompt with media in, one text token's logits at a time out; and what the talker needs of it.

Works on one request's rows at a time, with all state in `ThinkerState`, so that requests may be interleaved. Positions
are always given explicitly; nothing is kept on the module. Sampling and text are not its business.
"""

from dataclasses import dataclass
from typing import Any

import torch

from stages.models.qwen3_omni.modules import CachedDecoder, ThinkerParts
from stages.models.qwen3_omni.processing import ModelInputs


@dataclass(slots=True)
class ThinkerState:
    """One request: its cache, how many tokens that holds, and what is added to a token's index to get its position."""

    cache: Any
    length: int
    rope_delta: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """`logits` [vocabulary] of the first token; `media_hidden` [media tokens, hidden] at the prompt's media positions
    in order, of the layer that the talker accepts."""

    logits: torch.Tensor
    media_hidden: torch.Tensor
    state: ThinkerState


class Thinker:
    """transformers' thinker, stepwise. `accept_layer` indexes hidden states; 0 is the embeddings."""

    def __init__(self, module: Any, *, accept_layer: int, device: torch.device) -> None:
        self._module = module
        self._parts = ThinkerParts.of(module)
        self._decoder = CachedDecoder(self._parts.text)
        self._accept_layer = accept_layer
        self._device = device
        self._config = module.config

    def prefill(self, inputs: ModelInputs) -> Prefill:
        """The whole prompt in one call."""
        ids = inputs.input_ids.to(self._device)[None]
        embeds = self._parts.text.embed_tokens(ids)
        embeds, visual_mask, deepstack = self._merge_visual(ids, embeds, inputs)
        embeds = self._merge_audio(ids, embeds, inputs)
        positions, delta = self._positions(ids, inputs)
        media = torch.isin(ids[0], self._media_ids())
        cache = self._decoder.new_cache()
        hidden, accepted = self._forward(embeds, positions, cache, visual_mask, deepstack, capture=bool(media.any()))
        return Prefill(
            logits=self._parts.lm_head(hidden[:, -1:])[0, 0],
            media_hidden=accepted[0, media],
            state=ThinkerState(cache=cache, length=ids.shape[1], rope_delta=delta),
        )

    def decode(self, token: int, state: ThinkerState) -> torch.Tensor:
        """Feeds one generated token; the logits [vocabulary] of the next."""
        ids = torch.tensor([[token]], device=self._device)
        positions = torch.full((3, 1, 1), state.length + state.rope_delta, device=self._device)
        hidden = self._decoder(self._parts.text.embed_tokens(ids), positions, state.cache)
        state.length += 1
        logits: torch.Tensor = self._parts.lm_head(hidden)[0, 0]
        return logits

    def _media_ids(self) -> torch.Tensor:
        config = self._config
        return torch.tensor([config.image_token_id, config.video_token_id, config.audio_token_id], device=self._device)

    def _forward(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        cache: Any,
        visual_mask: torch.Tensor | None,
        deepstack: list[torch.Tensor] | None,
        *,
        capture: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompt's last hidden states and, if asked for, those of the accepted layer (else the embeddings)."""
        layers = self._parts.text.layers
        caught = [embeds]
        hook = None
        if capture and 0 < self._accept_layer < len(layers):
            # As `output_hidden_states` has it: the layer's own output, before visual features are added to it.
            hook = layers[self._accept_layer - 1].register_forward_hook(
                lambda _module, _arguments, output: caught.append(output)
            )
        try:
            hidden = self._decoder(
                embeds, positions, cache, visual_pos_masks=visual_mask, deepstack_visual_embeds=deepstack
            )
        finally:
            if hook is not None:
                hook.remove()
        if capture and self._accept_layer == len(layers):
            caught.append(hidden)
        return hidden, caught[-1]

    def _positions(self, ids: torch.Tensor, inputs: ModelInputs) -> tuple[torch.Tensor, int]:
        """Positions [3, 1, n] of the prompt and what is added to the index of every later token."""
        positions, delta = self._module.get_rope_index(
            ids,
            image_grid_thw=inputs.image_grid_thw,
            video_grid_thw=inputs.video_grid_thw,
            attention_mask=torch.ones_like(ids),
            audio_seqlens=inputs.audio_lengths,
            second_per_grids=inputs.video_second_per_grid,
        )
        return positions.to(self._device), int(delta)

    def _merge_audio(self, ids: torch.Tensor, embeds: torch.Tensor, inputs: ModelInputs) -> torch.Tensor:
        if inputs.input_features is None or inputs.audio_lengths is None:
            return embeds
        features = self._parts.audio(
            inputs.input_features.to(self._device), feature_lens=inputs.audio_lengths.to(self._device)
        ).last_hidden_state
        mask = (ids == self._config.audio_token_id)[..., None]
        return embeds.masked_scatter(mask, features.to(embeds.dtype))

    def _merge_visual(
        self, ids: torch.Tensor, embeds: torch.Tensor, inputs: ModelInputs
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[torch.Tensor] | None]:
        """Puts image and video features in their places; also returns where they are [1, n] and, per early layer of the
        language model, what is added there [visual tokens, hidden]."""
        found = []
        for token, pixels, grid in (
            (self._config.image_token_id, inputs.pixel_values, inputs.image_grid_thw),
            (self._config.video_token_id, inputs.pixel_values_videos, inputs.video_grid_thw),
        ):
            if pixels is None or grid is None:
                continue
            encoded = self._parts.visual(
                pixels.to(self._device, self._parts.visual.dtype), grid_thw=grid.to(self._device)
            )
            mask = ids == token
            embeds = embeds.masked_scatter(mask[..., None], encoded.pooler_output.to(embeds.dtype))
            found.append((mask, encoded.deepstack_features))
        if not found:
            return embeds, None, None
        everywhere = torch.stack([mask for mask, _ in found]).any(0)
        layers = []
        for features in zip(*(features for _, features in found), strict=True):
            joint = features[0].new_zeros(int(everywhere.sum()), features[0].shape[-1])
            for (mask, _), feature in zip(found, features, strict=True):
                joint[mask[everywhere]] = feature
            layers.append(joint)
        return embeds, everywhere, layers
