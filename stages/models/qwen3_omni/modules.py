"""transformers' own Qwen3-Omni modules, one stage at a time: built on the stage's device and filled strictly.

The one place that knows how stored names, transformers' class layout and its argument names differ between versions
(5.17 to 5.24). Must not decode or schedule anything.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig
from transformers import logging as transformers_logging
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

from stages.errors import CheckpointError
from stages.runners.loading import Slot, build, fill_random, load_weights, read_tensor

EMBEDDING_NAMES = ("thinker.model.embed_tokens.weight", "thinker.model.language_model.embed_tokens.weight")
# The key of the random values of `load_format=dummy`; the same in every process, so that stages agree on shared tables.
DUMMY_SEED = 0
_EMBEDDING = "model.embed_tokens"
_EXPERT = re.compile(r"(?P<mlp>.+\.mlp\.experts)\.(?P<expert>\d+)\.(?P<part>gate|up|down)_proj\.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a stage's module comes from and goes. `dummy` fills it with random values, from the config alone."""

    folder: Path
    device: torch.device
    dtype: torch.dtype
    dummy: bool


def read_config(folder: Path) -> Any:
    """transformers' Qwen3OmniMoeConfig of a folder. Raises CheckpointError for another model's folder."""
    # transformers warns about rope fields that the published configuration has and its own code reads.
    transformers_logging.set_verbosity_error()
    config = AutoConfig.from_pretrained(folder)
    if config.model_type != "qwen3_omni_moe":
        raise CheckpointError(f"{folder / 'config.json'}: model_type is {config.model_type!r}, not 'qwen3_omni_moe'")
    # The talker computes positions of audio input from it, but transformers never sets it.
    config.talker_config.audio_config = config.thinker_config.audio_config
    return config


def route(state: Mapping[str, torch.Tensor]) -> Callable[[str], Slot | None]:
    """How the published names map to the parameters in `state`: a different nesting, and routed experts merged per
    layer as [expert, gate rows then up rows, hidden] and [expert, hidden, inner]."""

    def nested(name: str) -> str:
        candidates = (name, f"model.{name}", re.sub(r"^model\.", "model.language_model.", name))
        return next((candidate for candidate in candidates if candidate in state), name)

    def find(name: str) -> Slot | None:
        found = _EXPERT.fullmatch(name)
        if found is None:
            return Slot(nested(name))
        expert, part = int(found["expert"]), found["part"]
        merged = nested(f"{found['mlp']}.{'down' if part == 'down' else 'gate_up'}_proj")
        if merged not in state or expert >= len(state[merged]):
            return Slot(nested(name))
        if part == "down":
            return Slot(merged, (expert,))
        inner = state[merged].shape[1] // 2
        return Slot(merged, (expert, slice(0, inner) if part == "gate" else slice(inner, 2 * inner)))

    return find


_KINDS = {
    "thinker": modeling.Qwen3OmniMoeThinkerForConditionalGeneration,
    "talker": modeling.Qwen3OmniMoeTalkerForConditionalGeneration,  # with its code predictor
    "code2wav": modeling.Qwen3OmniMoeCode2Wav,
}


def stage_module(stage: str, config: Any, source: Source) -> tuple[Any, int]:
    """transformers' module of the stage, and its bytes."""
    own = getattr(config, f"{stage}_config")
    made = build(lambda: _KINDS[stage]._from_config(own, dtype=source.dtype), device=source.device, dtype=source.dtype)
    return made, fill(made, stage, source)


def fill(module: nn.Module, stage: str, source: Source) -> int:
    """The stage's values; returns the bytes. Those of `load_format=dummy` are random, the same for every version's
    names and every process."""
    if source.dummy:
        return fill_random(
            module, seed=DUMMY_SEED, name_as=lambda name: name.replace("model.language_model.", "model.")
        )
    state = module.state_dict(keep_vars=True)
    return load_weights(module, source.folder, prefix=f"{stage}.", route=route(state))


def thinker_embedding(config: Any, source: Source) -> torch.Tensor:
    """The thinker's embedding table [vocabulary, hidden] on the source's device; the talker's stage projects it."""
    if not source.dummy:
        return read_tensor(source.folder, EMBEDDING_NAMES).to(source.device, source.dtype)
    text = config.thinker_config.text_config

    def table() -> nn.Module:
        return nn.Embedding(text.vocab_size, text.hidden_size)

    embedding = build(table, device=source.device, dtype=source.dtype)
    fill_random(embedding, seed=DUMMY_SEED, name_as=lambda name: f"{_EMBEDDING}.{name}")
    weight: torch.Tensor = embedding.weight
    return weight


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkerParts:
    """The thinker's towers and language model, wherever this version of transformers keeps them."""

    text: Any
    visual: Any
    audio: Any
    lm_head: Any

    @staticmethod
    def of(module: Any) -> "ThinkerParts":
        inner = module.model if hasattr(module.model, "language_model") else module
        text = inner.language_model if inner is not module else module.model
        return ThinkerParts(text=text, visual=inner.visual, audio=inner.audio_tower, lm_head=module.lm_head)


class CachedDecoder:
    """A decoder stack called step by step with a cache per request, under whichever name it takes the cache."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        parameters = inspect.signature(decoder.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    def __call__(self, embeds: torch.Tensor, positions: torch.Tensor, cache: Any, **extra: Any) -> torch.Tensor:
        """Hidden states [1, n, hidden] after the last norm, for `embeds` [1, n, hidden] that follow what `cache` holds.

        `positions` is [3, 1, n] for decoders with multimodal rope, [1, n] for the others.
        """
        output = self._decoder(
            inputs_embeds=embeds, position_ids=positions, use_cache=True, **{self._cache_name: cache}, **extra
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden
