"""From logits to tokens for all rows of a step at once: penalties, filters, then the inverse distribution.

Each step is transformers' (its logits processors, in its order), per row; a row's token depends on its own logits,
parameters and number alone. Nothing is read back from the device. Does not know what a token means.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from stages.runners.sampling import DrawKey, SamplingParams, uniforms

_NEVER = float("-inf")
# Columns of the parameters' table.
_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P, _REPETITION, _PRESENCE, _FREQUENCY = range(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a step has to do beyond the argmax, over all its rows. Rows that do not ask for it are not changed by it.

    `widest` is how many of the most likely tokens the filters have to look at, 0 for all.
    """

    draw: bool = False
    filters: bool = False
    widest: int = 0
    penalties: bool = False
    bias: bool = False
    ends: bool = False
    logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingStep:
    """One step's rows: `slots` [R] int64, `numbers` [R] float64 (empty where nothing is drawn), `no_end` [R] bool
    (empty where every row may end)."""

    work: Work
    slots: torch.Tensor
    numbers: torch.Tensor
    no_end: torch.Tensor

    def to(self, device: torch.device) -> "SamplingStep":
        """There, without waiting for what the device is at: the step's own pass may be under way."""
        return SamplingStep(
            work=self.work,
            slots=self.slots.to(device, non_blocking=True),
            numbers=self.numbers.to(device, non_blocking=True),
            no_end=self.no_end.to(device, non_blocking=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """`tokens` [R] int64. If asked for, log probabilities of the model itself, before penalties and filters: `logprob`
    [R] of the token, and the `likely` [R, n] with `likely_logprob` [R, n], descending."""

    tokens: torch.Tensor
    logprob: torch.Tensor | None = None
    likely: torch.Tensor | None = None
    likely_logprob: torch.Tensor | None = None


@dataclass(slots=True)
class _Open:
    params: SamplingParams
    key: DrawKey
    penalised: bool
    held_ids: tuple[int, ...] = field(default=())  # stop ids that are held back until `min_tokens`


class Sampler:
    """Draws for up to `slots` requests at a time, each in a slot of its own.

    `suppressed` ids are never drawn; `end_tokens` not before a request's `min_tokens`, and never with `ignore_eos`.
    """

    def __init__(
        self,
        vocabulary: int,
        slots: int,
        *,
        device: torch.device,
        suppressed: Sequence[int] = (),
        end_tokens: Sequence[int] = (),
    ) -> None:
        self.vocabulary = vocabulary
        self._slots = slots
        self._device = device
        self._open: dict[int, _Open] = {}
        self._params = torch.zeros(slots, 7, dtype=torch.float32, device=device)
        self._ends = torch.tensor(list(end_tokens), dtype=torch.int64, device=device)
        self._suppressed: torch.Tensor | None = None
        if suppressed:
            self._suppressed = torch.zeros(vocabulary, device=device)
            self._suppressed[list(suppressed)] = _NEVER
        # A row a slot, made when the first request needs one.
        self._bias: torch.Tensor | None = None
        self._prompts: torch.Tensor | None = None
        self._counts: torch.Tensor | None = None

    def open(
        self,
        slot: int,
        params: SamplingParams,
        key: DrawKey,
        *,
        prompt: Sequence[int] = (),
        generated: Sequence[int] = (),
    ) -> None:
        """A request takes a slot. A repetition penalty counts `prompt` and what is drawn, the others what is drawn;
        `generated` was drawn before, in another slot."""
        penalised = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        opened = self._open[slot] = _Open(params, key, penalised)
        row = (
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        self._params[slot] = torch.tensor(row, dtype=torch.float32)
        if penalised:
            self._count(slot, prompt, generated)
        if len(generated) < params.min_tokens:
            opened.held_ids = params.stop_token_ids
        if params.logit_bias or opened.held_ids or self._bias is not None:
            self._set_bias(slot, params, opened.held_ids)

    def close(self, slot: int) -> None:
        del self._open[slot]

    def prepare(self, rows: Sequence[tuple[int, int]]) -> SamplingStep:
        """The step of `rows`, (slot, position) each, on the CPU; `position` is how many tokens the request has drawn
        before."""
        work, no_end = self._work(rows)
        numbers = uniforms([(self._open[slot].key, position) for slot, position in rows])[:, 0] if work.draw else None
        return SamplingStep(
            work=work,
            slots=torch.tensor([slot for slot, _ in rows], dtype=torch.int64),
            numbers=torch.from_numpy(np.empty(0) if numbers is None else numbers),
            no_end=torch.tensor(no_end if work.ends else [], dtype=torch.bool),
        )

    def all_work(self) -> Work:
        """What does for every step without log probabilities, whatever its rows ask for: a graph can have it."""
        self._make_counts()
        self._make_bias()
        return Work(
            draw=True, filters=True, widest=self.vocabulary, penalties=True, bias=True, ends=len(self._ends) > 0
        )

    def __call__(self, logits: torch.Tensor, step: SamplingStep) -> Drawn:
        """Tokens for `logits` [R, vocabulary] of the step's rows; counts them for the penalties."""
        work, step = step.work, step.to(self._device)
        params = self._params[step.slots]
        scores = self._penalised(logits.float(), step, params)
        tokens = scores.argmax(-1)
        if work.draw:
            hot = params[:, _TEMPERATURE] > 0
            scores = scores / torch.where(hot, params[:, _TEMPERATURE], 1.0)[:, None]
            if work.filters:
                scores = filtered(
                    scores, params[:, _TOP_K].long(), params[:, _TOP_P], params[:, _MIN_P], widest=work.widest
                )
            tokens = torch.where(hot, pick(scores, step.numbers), tokens)
        if work.penalties and self._counts is not None:
            places = step.slots * self.vocabulary + tokens
            self._counts.view(-1).scatter_add_(0, places, torch.ones_like(places, dtype=torch.int32))
        return _with_logprobs(logits, tokens, work.logprobs)

    def _penalised(self, scores: torch.Tensor, step: SamplingStep, params: torch.Tensor) -> torch.Tensor:
        """The order is transformers': bias, ends, repetition; what is suppressed stays so under any penalty."""
        if step.work.bias and self._bias is not None:
            scores = scores + self._bias[step.slots]
        if self._suppressed is not None:
            scores = scores + self._suppressed
        if step.work.ends:
            held = torch.where(step.no_end[:, None], _NEVER, scores[:, self._ends])
            scores = scores.index_copy(1, self._ends, held)
        if step.work.penalties and self._counts is not None and self._prompts is not None:
            counts = self._counts[step.slots]
            seen = self._prompts[step.slots] | (counts > 0)
            penalty = params[:, _REPETITION, None]
            scores = torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)
            scores = scores - params[:, _PRESENCE, None] * (counts > 0) - params[:, _FREQUENCY, None] * counts
        return scores

    def _work(self, rows: Sequence[tuple[int, int]]) -> tuple[Work, list[bool]]:
        draw = filters = penalties = bias = False
        widest, logprobs, no_end = 1, None, []
        for slot, position in rows:
            opened = self._open[slot]
            params = opened.params
            if opened.held_ids and position >= params.min_tokens:
                opened.held_ids = ()
                self._set_bias(slot, params, ())
            no_end.append(params.ignore_eos or position < params.min_tokens)
            penalties |= opened.penalised
            bias |= bool(params.logit_bias or opened.held_ids)
            if params.logprobs is not None:
                logprobs = max(params.logprobs, logprobs or 0)
            if params.temperature == 0:
                continue
            draw = True
            if params.top_k or params.top_p < 1 or params.min_p > 0:
                filters = True
                needed = params.top_k or (self.vocabulary if params.top_p < 1 else 1)
                widest = min(max(widest, needed), self.vocabulary)
        work = Work(
            draw=draw,
            filters=filters,
            widest=widest,
            penalties=penalties,
            bias=bias,
            ends=len(self._ends) > 0 and any(no_end),
            logprobs=logprobs,
        )
        return work, no_end

    def _count(self, slot: int, prompt: Sequence[int], generated: Sequence[int]) -> None:
        counts, prompts = self._make_counts()
        prompts[slot] = False
        prompts[slot, torch.tensor(list(prompt), dtype=torch.int64, device=self._device)] = True
        drawn = torch.tensor(list(generated), dtype=torch.int64, device=self._device)
        counts[slot] = torch.bincount(drawn, minlength=self.vocabulary).int()

    def _make_counts(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._counts is None or self._prompts is None:
            shape = (self._slots, self.vocabulary)
            self._counts = torch.zeros(shape, dtype=torch.int32, device=self._device)
            self._prompts = torch.zeros(shape, dtype=torch.bool, device=self._device)
        return self._counts, self._prompts

    def _set_bias(self, slot: int, params: SamplingParams, held_ids: Sequence[int]) -> None:
        row = torch.zeros(self.vocabulary)
        for token, bias in params.logit_bias:
            row[token] = bias
        row[list(held_ids)] = _NEVER
        self._make_bias()[slot] = row.to(self._device)

    def _make_bias(self) -> torch.Tensor:
        if self._bias is None:
            self._bias = torch.zeros(self._slots, self.vocabulary, device=self._device)
        return self._bias


def filtered(
    scores: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, *, widest: int
) -> torch.Tensor:
    """`scores` [R, V] with -inf for all that a row's filters drop, applied in the order top-k, top-p, min-p.

    `top_k` [R] int64 (0 is off), `top_p` [R] (1 is off), `min_p` [R] (0 is off). `widest` is at least every top-k, and
    V where a row has top-p without top-k. Tokens that tie with the least likely one that is kept are kept.
    """
    values = scores.topk(widest, dim=-1).values
    rank = torch.arange(widest, device=scores.device)
    reach = torch.where(top_k > 0, top_k, widest).clamp(max=widest)[:, None]
    floor = torch.where(top_k[:, None] > 0, values.gather(1, reach - 1), _NEVER)
    # the share of what top-k leaves, and of all tokens that are likelier than each
    total = scores.masked_fill(scores < floor, _NEVER).logsumexp(-1, keepdim=True)
    shares = (values - total).exp()
    inside = (shares.cumsum(-1) - shares < top_p[:, None]) & (rank < reach)
    last = values.gather(1, inside.sum(-1, keepdim=True) - 1)
    floor = torch.where(top_p[:, None] < 1, torch.maximum(floor, last), floor)
    floor = torch.maximum(floor, values[:, :1] + min_p.log()[:, None])
    return scores.masked_fill(scores < floor, _NEVER)


def pick(scores: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The tokens [R] at which the cumulative distribution of `scores` [R, V] first exceeds `numbers` [R] float64.

    Ids in ascending order; a token with score -inf is never picked.
    """
    cumulative = scores.softmax(-1).double().cumsum(-1)
    total = cumulative[:, -1:]
    threshold = torch.minimum(numbers[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0]


def _with_logprobs(logits: torch.Tensor, tokens: torch.Tensor, count: int | None) -> Drawn:
    if count is None:
        return Drawn(tokens=tokens)
    logprobs = logits.float().log_softmax(-1)
    likely = logprobs.topk(count, dim=-1)
    return Drawn(
        tokens=tokens,
        logprob=logprobs.gather(1, tokens[:, None])[:, 0],
        likely=likely.indices,
        likely_logprob=likely.values,
    )
