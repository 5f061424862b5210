"""From logits to one token: transformers' logits processors, then one uniform number and the inverse distribution.

The uniform number depends on (seed, stage, choice, position, code group) alone, so a request's tokens never depend on
who shares its batch, on a replica or on a replay. Keeps no state between calls.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from stages.errors import RequestRefused
from stages.messages import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What a stage does when a request leaves nothing open. `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0
    and `repetition_penalty` 1 are off. `min_tokens` keeps the end token away for that many tokens."""

    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False

    def with_request(self, asked: Sampling, stage: str) -> "SamplingParams":
        """These values with what the request sets put over them.

        Raises RequestRefused for values out of range, and for a filter on a stage that would be greedy, where it could
        not act.
        """
        names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        given = {name: value for name in names if (value := getattr(asked, name)) is not None}
        params = replace(self, **given, min_tokens=asked.min_tokens, ignore_eos=asked.ignore_eos)
        key = f"request.sampling.{stage}"
        idle = sorted({"top_k", "top_p", "min_p"} & given.keys())
        if idle and params.temperature == 0 and asked.temperature is None:
            raise RequestRefused(
                f"{key}.{idle[0]}={given[idle[0]]} cannot act: {stage} is greedy by default; set {key}.temperature too"
            )
        checks = (
            ("temperature", 0 <= params.temperature < math.inf, "0 (greedy) or more"),
            ("top_k", params.top_k >= 0, "0 (off) or more"),
            ("top_p", 0 < params.top_p <= 1, "over 0 and at most 1"),
            ("min_p", 0 <= params.min_p <= 1, "from 0 to 1"),
            ("repetition_penalty", 0 < params.repetition_penalty < math.inf, "over 0"),
            ("max_tokens", params.max_tokens >= 1, "1 or more"),
            ("min_tokens", params.min_tokens >= 0, "0 or more"),
        )
        for name, sound, expected in checks:
            if not sound:
                raise RequestRefused(f"{key}.{name} must be {expected}, got {getattr(params, name)}")
        return params


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawKey:
    """What all draws of one request in one stage share."""

    seed: int
    stage: str
    choice: int = 0

    def uniform(self, position: int, group: int = 0) -> float:
        """A number in [0, 1) of 53 bits: BLAKE2b used as a counter-based generator."""
        counter = f"{self.seed}/{self.stage}/{self.choice}/{position}/{group}".encode()
        bits = int.from_bytes(hashlib.blake2b(counter, digest_size=8).digest()) >> 11
        return bits * 2.0**-53


class Sampler:
    """Picks tokens for one request in one stage.

    `suppressed` ids are never picked; `end_tokens` not before `min_tokens` tokens, and never with `ignore_eos`.
    """

    def __init__(
        self,
        params: SamplingParams,
        key: DrawKey,
        *,
        device: torch.device,
        suppressed: Sequence[int] = (),
        end_tokens: Sequence[int] = (),
    ) -> None:
        self._params = params
        self._key = key
        # The order in which transformers' `generate` applies them.
        self._processors = LogitsProcessorList()
        if params.repetition_penalty != 1:
            self._processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
        if suppressed:
            self._processors.append(SuppressTokensLogitsProcessor(suppressed, device=str(device)))
        self._no_end = SuppressTokensLogitsProcessor(end_tokens, device=str(device)) if end_tokens else None
        self._warpers = _warpers(params)

    def __call__(self, logits: torch.Tensor, history: Sequence[int], position: int, group: int = 0) -> int:
        """One token for `logits` [vocabulary]. `history` are the tokens that a repetition penalty counts; `position` is
        the number of tokens picked before in this stage, `group` the code group."""
        scores = logits.float()[None]
        past = torch.tensor([history], dtype=torch.long, device=scores.device)
        if self._no_end is not None and (self._params.ignore_eos or position < self._params.min_tokens):
            scores = self._no_end(past, scores)
        scores = self._processors(past, scores)
        if self._params.temperature == 0:
            return int(scores.argmax())
        return pick(self._warpers(past, scores)[0], self._key.uniform(position, group))


def pick(scores: torch.Tensor, uniform: float) -> int:
    """The token at which the cumulative distribution of `scores` [vocabulary] first exceeds `uniform`.

    Ids in ascending order; a token with score -inf is never picked.
    """
    cumulative = scores.softmax(-1).double().cumsum(-1)
    total = float(cumulative[-1])
    threshold = min(uniform * total, math.nextafter(total, 0.0))
    return int(torch.searchsorted(cumulative, threshold, right=True))


def _warpers(params: SamplingParams) -> LogitsProcessorList:
    warpers = LogitsProcessorList()
    if params.temperature == 0:
        return warpers
    if params.temperature != 1:
        warpers.append(TemperatureLogitsWarper(float(params.temperature)))
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(float(params.top_p)))
    if params.min_p > 0:
        warpers.append(MinPLogitsWarper(float(params.min_p)))
    return warpers
