"""transformers' decoder stacks over packed rows: attention goes through the step that a forward call is given.

Attention and experts are put in by transformers' own registries; no module is patched. What a step keeps between calls
is its cache's; this module must not know requests.
"""

from typing import Any, Protocol

import torch
from transformers import AttentionInterface
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from stages.kernels.attention import paged_attention
from stages.kernels.experts import experts
from stages.runners.kv_cache import PagedCache, StepLayout

ATTENTION = "omni_step"
EXPERTS = "omni"


class AttentionStep(Protocol):
    """What the attention of one forward call reads and writes."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """`query` [batch, heads, n, dim], `key` and `value` [batch, kv_heads, n, dim] -> [batch, n, heads, dim]."""
        ...


class PagedStep:
    """Packed rows (batch 1) over a paged cache."""

    def __init__(self, cache: PagedCache, layout: StepLayout) -> None:
        self.cache = cache
        self.layout = layout

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        cache = self.cache
        cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), self.layout.slots)
        return paged_attention(query[0].transpose(0, 1), cache.keys[layer], cache.values[layer], self.layout, scale)[
            None
        ]


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    omni_step: AttentionStep,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    return omni_step.attend(module.layer_idx, query, key, value, scaling), None


def _experts(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    return experts(hidden_states, module.gate_up_proj, module.down_proj, top_k_index, top_k_weights)


AttentionInterface.register(ATTENTION, _attention)
ALL_EXPERTS_FUNCTIONS.register(EXPERTS, _experts)


class PackedDecoder:
    """A decoder stack of transformers. From now on it works through this class alone, on CUDA by fused layers."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        if next(decoder.parameters()).is_cuda:
            from stages.kernels.cuda.layers import fuse_layers

            fuse_layers(decoder)
        decoder.config._attn_implementation = ATTENTION
        # The kernel computes SiLU; a model with another activation keeps transformers' experts.
        if getattr(decoder.config, "hidden_act", None) == "silu":
            decoder.config._experts_implementation = EXPERTS

    def __call__(
        self, embeds: torch.Tensor, positions: torch.Tensor, step: AttentionStep, **extra: Any
    ) -> torch.Tensor:
        """Hidden states [batch, n, hidden] after the last norm, for `embeds` [batch, n, hidden].

        `positions` is [3, batch, n] for decoders with multimodal rope, [batch, n] for the others.
        """
        output = self._decoder(inputs_embeds=embeds, position_ids=positions, use_cache=False, omni_step=step, **extra)
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def with_layer(
        self, layer: int, embeds: torch.Tensor, positions: torch.Tensor, step: AttentionStep, **extra: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, and the hidden states [batch, n, hidden] behind the first `layer` layers, as `output_hidden_states`
        has them: before visual features are added there, and normalised behind the last layer."""
        layers = self._decoder.layers
        if layer == 0:
            return self(embeds, positions, step, **extra), embeds
        if layer == len(layers):
            hidden = self(embeds, positions, step, **extra)
            return hidden, hidden
        caught: list[torch.Tensor] = []
        hook = layers[layer - 1].register_forward_hook(lambda _module, _given, output: caught.append(output))
        try:
            hidden = self(embeds, positions, step, **extra)
        finally:
            hook.remove()
        return hidden, caught[0]
