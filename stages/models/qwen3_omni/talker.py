"""The Talker: packed rows of prompts and frames in, hidden states and logits of each frame's first code out.

Knows codes, positions and slots; neither requests nor sampling of the first code. A decode step is a function of its
tensors, the code predictor included: no shape or branch depends on their contents and nothing is read back.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch

from stages.models.qwen3_omni.code_predictor import CodePredictor
from stages.models.qwen3_omni.packed import PackedDecoder, PagedStep
from stages.models.qwen3_omni.talker_prompt import PromptBuilder
from stages.runners.kv_cache import PagedCache, StepLayout
from stages.runners.sampling import SamplingParams

if TYPE_CHECKING:
    from stages.models.qwen3_omni.fused_predictor import FusedCodePredictor


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Rows that complete a frame: its `first` code [R] int64, the `text` [R] int64 that is spoken with it, and `slots`
    [R] int64; `numbers` and `greedy` as in `CodePredictor`."""

    first: torch.Tensor
    text: torch.Tensor
    slots: torch.Tensor
    numbers: torch.Tensor | None
    greedy: torch.Tensor | None

    def to(self, device: torch.device) -> "Frames":
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return Frames(**{name: each if each is None else each.to(device) for name, each in held.items()})


class Talker:
    """transformers' talker over a paged cache, for up to `slots` requests in a step.

    `table` [thinker vocabulary, hidden] is the projected embedding table. A slot keeps the last hidden state of the
    request that has it, from which the next frame's residual codes come; `predictor` says how they are drawn.
    """

    def __init__(
        self,
        module: Any,
        table: torch.Tensor,
        cache: PagedCache,
        config: Any,
        *,
        slots: int,
        predictor: SamplingParams,
    ) -> None:
        self._table = table
        self._cache = cache
        self._embedding = module.get_input_embeddings()
        self._head = module.codec_head
        self._decoder = PackedDecoder(module.model)
        # One more, for the padding rows of a step of a fixed size.
        self._last = table.new_zeros(slots + 1, table.shape[-1])
        self.prompts = PromptBuilder(module, table, config)
        self.predictor = _predictor(module.code_predictor, slots, predictor, table.device)

    def decode(self, frames: Frames, positions: torch.Tensor, layout: StepLayout) -> tuple[torch.Tensor, torch.Tensor]:
        """One frame a row, at `positions` [R] float32: the logits [R, codec vocabulary] of the next frame's first code,
        and the residual codes [R, groups - 1] int64 of this one."""
        embeds, codes = self.complete(frames)
        hidden = self.hidden(embeds, positions.expand(3, -1), layout)
        return self.logits(hidden, frames.slots), codes

    def complete(self, frames: Frames) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs [R, hidden] of frames, and their residual codes [R, groups - 1]."""
        first = self._embedding(frames.first)
        codes, embeds = self.predictor(self._last[frames.slots], first, frames.numbers, frames.greedy)
        return embeds + self._table[frames.text], codes

    def frames(self, codes: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """The inputs [F, hidden] of whole frames, `codes` [F, groups] int64, each with its `text` [F] int64.

        As in transformers' `prepare_inputs_for_generation`: the sum of a frame's embeddings plus the next text token.
        """
        embeds = [self._embedding(codes[:, 0])]
        embeds += [table(codes[:, group + 1]) for group, table in enumerate(self.predictor.embeddings)]
        return torch.stack(embeds, dim=1).sum(1) + self._table[text]

    def embeds(self, tokens: int) -> torch.Tensor:
        """A buffer [tokens, hidden] for embeddings."""
        return self._table.new_zeros(tokens, self._table.shape[-1])

    def prefill(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        layout: StepLayout,
        places: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """Logits [len(places), codec vocabulary] after the tokens at `places`, whose hidden states `slots` keep."""
        return self.logits(self.hidden(embeds, positions, layout)[places], slots)

    def hidden(self, embeds: torch.Tensor, positions: torch.Tensor, layout: StepLayout) -> torch.Tensor:
        """Hidden states [T, hidden] of packed `embeds` [T, hidden] at `positions` [3, T]."""
        return self._decoder(embeds[None], positions[:, None], PagedStep(self._cache, layout))[0]

    def logits(self, hidden: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """[R, codec vocabulary] for the last hidden states [R, hidden] of rows, which their `slots` [R] keep."""
        self._last.index_copy_(0, slots, hidden)
        logits: torch.Tensor = self._head(hidden)
        return logits

    def last(self, slot: int) -> torch.Tensor:
        """A copy of what the slot keeps."""
        return self._last[slot].clone()

    def restore(self, slot: int, hidden: torch.Tensor) -> None:
        self._last[slot] = hidden


def _predictor(
    module: Any, slots: int, params: SamplingParams, device: torch.device
) -> "CodePredictor | FusedCodePredictor":
    """The one for the device; both are called alike."""
    if device.type == "cuda":
        from stages.models.qwen3_omni.fused_predictor import FusedCodePredictor

        return FusedCodePredictor(module, slots, params=params, device=device)
    return CodePredictor(module, slots, params=params, device=device)
