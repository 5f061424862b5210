"""Tokens of a whole step are those that transformers' processors leave and one number picks, row by row."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from stages.runners.sampler import Drawn, Sampler, filtered, pick
from stages.runners.sampling import DrawKey, SamplingParams

CPU = torch.device("cpu")
VOCABULARY, SUPPRESSED, END = 40, (7, 39), 5
LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.9, -1.0])


def key(seed: int = 5) -> DrawKey:
    return DrawKey(seed=seed, stage="thinker")


def draws(
    logits: torch.Tensor, positions: range | list[int], *, history: tuple[int, ...] = (), **params: object
) -> list[int]:
    """Of one request: id 1 is suppressed, id 3 ends."""
    sampler = Sampler(len(logits), 1, device=CPU, suppressed=(1,), end_tokens=(3,))
    tokens = []
    for position in positions:
        sampler.open(0, SamplingParams(max_tokens=1000, **params), key(), prompt=history)
        tokens.append(int(sampler(logits[None], sampler.prepare([(0, position)])).tokens[0]))
        sampler.close(0)
    return tokens


def reference(
    logits: torch.Tensor, params: SamplingParams, draw: DrawKey, prompt: list[int], generated: list[int]
) -> tuple[torch.Tensor, int]:
    """transformers' processors in the order of its `generate`, for one row alone."""
    held = params.ignore_eos or len(generated) < params.min_tokens
    processors = LogitsProcessorList()
    if params.logit_bias:
        processors.append(SequenceBiasLogitsProcessor([[[token], bias] for token, bias in params.logit_bias]))
    if held:
        processors.append(SuppressTokensLogitsProcessor([END], device="cpu"))
    if params.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    processors.append(SuppressTokensLogitsProcessor(list(SUPPRESSED), device="cpu"))
    scores = processors(torch.tensor([prompt + generated], dtype=torch.long), logits[None].clone())
    counts = torch.bincount(torch.tensor(generated, dtype=torch.long), minlength=VOCABULARY)
    scores = scores - params.presence_penalty * (counts > 0) - params.frequency_penalty * counts
    if params.temperature == 0:
        return scores, int(scores.argmax())
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(params.temperature))])
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(float(params.top_p)))
    if params.min_p:
        warpers.append(MinPLogitsWarper(float(params.min_p)))
    scores = warpers(None, scores)
    return scores, int(pick(scores, torch.tensor([draw.uniform(len(generated))], dtype=torch.float64)))


PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(99),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 30, 1000]),
    top_p=st.sampled_from([1.0, 0.9, 0.37]),
    min_p=st.sampled_from([0.0, 0.13]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.7, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.sampled_from([(), ((2, 5.0), (END, -3.0)), ((39, 100.0),)]),
    min_tokens=st.integers(0, 3),
    ignore_eos=st.booleans(),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(PARAMS, min_size=1, max_size=6), st.integers(0, 10_000), st.data())
def test_a_batch_gives_each_row_what_it_gets_alone(rows: list[SamplingParams], seed: int, data: st.DataObject) -> None:
    """Several steps with requests that keep what they have drawn, in any order and in any company."""
    generator = np.random.default_rng(seed)
    sampler = Sampler(VOCABULARY, len(rows), device=CPU, suppressed=SUPPRESSED, end_tokens=(END,))
    prompts = [generator.integers(0, VOCABULARY, 4).tolist() for _ in rows]
    drawn: list[list[int]] = [[] for _ in rows]
    slots = generator.permutation(len(rows)).tolist()
    for row, params in enumerate(rows):
        sampler.open(slots[row], params, key(row), prompt=prompts[row])
    for _ in range(4):
        chosen = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, unique=True))
        if data.draw(st.booleans()):  # taken off its slot and put back with what it has drawn
            row = chosen[0]
            sampler.close(slots[row])
            sampler.open(slots[row], rows[row], key(row), prompt=prompts[row], generated=drawn[row])
        logits = torch.from_numpy(generator.normal(0, 2, (len(chosen), VOCABULARY)).astype(np.float32))
        found = sampler(logits, sampler.prepare([(slots[row], len(drawn[row])) for row in chosen])).tokens.tolist()
        for row, own, token in zip(chosen, logits, found, strict=True):
            assert token == reference(own, rows[row], key(row), prompts[row], drawn[row])[1]
            drawn[row].append(token)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.sampled_from([1.0, 0.99, 0.5, 1e-6]), st.sampled_from([0.0, 0.05, 1.0])),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 1000),
)
def test_filters_keep_what_transformers_keeps(rows: list[tuple[int, float, float]], seed: int) -> None:
    scores = torch.randn(len(rows), 12, generator=torch.Generator().manual_seed(seed)) * 3
    kept = filtered(
        scores,
        torch.tensor([top_k for top_k, _, _ in rows]),
        torch.tensor([top_p for _, top_p, _ in rows]),
        torch.tensor([min_p for _, _, min_p in rows]),
        widest=12,
    )
    for own, found, (top_k, top_p, min_p) in zip(scores, kept, rows, strict=True):
        expected = own[None].clone()
        for warper in (
            TopKLogitsWarper(top_k) if top_k else None,
            TopPLogitsWarper(top_p) if top_p < 1 else None,
            MinPLogitsWarper(min_p) if min_p else None,
        ):
            expected = warper(None, expected) if warper else expected
        assert torch.equal(found, expected[0])


def test_what_ties_with_the_least_likely_token_is_kept() -> None:
    scores = torch.tensor([[1.0, 2.0, 1.0, 0.0]])
    found = filtered(scores, torch.tensor([2]), torch.tensor([1.0]), torch.tensor([0.0]), widest=2)
    assert found.isfinite().tolist() == [[True, True, True, False]]


def test_greedy_takes_the_best_token_that_is_allowed() -> None:
    plain = Sampler(5, 1, device=CPU)
    plain.open(0, SamplingParams(max_tokens=1), key())
    assert plain(LOGITS[None], plain.prepare([(0, 0)])).tokens.tolist() == [1]
    assert draws(LOGITS, [0]) == [3]


def test_the_repetition_penalty_counts_the_prompt_and_the_others_do_not() -> None:
    assert draws(LOGITS, [1], history=(3,), repetition_penalty=3.0) == [2]
    assert draws(LOGITS, [1], history=(3,), presence_penalty=2.0, frequency_penalty=2.0) == [3]


def test_the_end_token_waits_for_min_tokens() -> None:
    assert draws(LOGITS, range(4), min_tokens=2) == [2, 2, 3, 3]
    assert draws(LOGITS, [50], ignore_eos=True) == [2]


def test_stop_tokens_wait_for_min_tokens_and_are_not_ignored() -> None:
    sampler = Sampler(5, 1, device=CPU)
    for ignore_eos in (False, True):
        sampler.open(0, SamplingParams(max_tokens=9, stop_token_ids=(1,), min_tokens=2, ignore_eos=ignore_eos), key())
        steps = [sampler(LOGITS[None], sampler.prepare([(0, at)])).tokens.tolist() for at in range(4)]
        assert steps == [[3], [3], [1], [1]]
        sampler.close(0)


def test_a_slot_forgets_who_had_it() -> None:
    sampler = Sampler(5, 2, device=CPU)
    given = SamplingParams(max_tokens=9, logit_bias=((4, 50.0),), repetition_penalty=9.0)
    sampler.open(0, given, key(), prompt=(1,))
    assert sampler(LOGITS[None], sampler.prepare([(0, 0)])).tokens.tolist() == [4]
    sampler.close(0)
    sampler.open(0, SamplingParams(max_tokens=9), key())
    sampler.open(1, given, key())
    tokens = sampler(LOGITS.expand(2, -1), sampler.prepare([(0, 0), (1, 0)])).tokens
    assert tokens.tolist() == [1, 4]


@pytest.mark.parametrize(
    ("params", "allowed"),
    [({"top_k": 2}, {2, 3}), ({"top_p": 0.5}, {3}), ({"min_p": 0.1}, {2, 3}), ({}, {0, 2, 3, 4})],
)
def test_filters_leave_what_they_should(params: dict[str, float], allowed: set[int]) -> None:
    assert set(draws(LOGITS, range(300), temperature=1.0, **params)) == allowed


def test_draws_follow_the_distribution() -> None:
    numbers = torch.tensor([key().uniform(position) for position in range(4000)], dtype=torch.float64)
    counts = torch.bincount(pick((LOGITS / 2).expand(4000, -1), numbers), minlength=5).numpy()
    expected = torch.softmax(LOGITS / 2, -1).numpy() * 4000
    # Pearson's statistic, 4 degrees of freedom: 18.5 is the 99.9th percentile, and the draws are fixed.
    assert ((counts - expected) ** 2 / expected).sum() < 18.5


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.floats(-50, 50, width=32), st.just(-math.inf)), min_size=1, max_size=40),
    st.floats(0, 1, exclude_max=True),
)
def test_the_inverse_never_picks_what_is_impossible(scores: list[float], uniform: float) -> None:
    tensor = torch.tensor(scores)
    if not torch.isfinite(tensor).any():
        return
    chosen = int(pick(tensor[None], torch.tensor([uniform], dtype=torch.float64)))
    probabilities = torch.softmax(tensor, -1).double().numpy()
    assert probabilities[chosen] > 0
    below, total = probabilities[:chosen].sum(), probabilities.sum()
    assert below <= uniform * total + 1e-9
    assert below + probabilities[chosen] >= uniform * total - 1e-9


def test_log_probabilities_are_the_model_s_own() -> None:
    sampler = Sampler(5, 2, device=CPU, suppressed=(1,))
    sampler.open(0, SamplingParams(max_tokens=9, logprobs=2, temperature=0.5, top_k=1), key())
    sampler.open(1, SamplingParams(max_tokens=9), key())
    logits = torch.stack([LOGITS, LOGITS.flip(0)])
    drawn = sampler(logits, sampler.prepare([(0, 0), (1, 0)]))
    assert drawn.tokens.tolist() == [3, 3]
    expected = logits.log_softmax(-1)
    assert torch.equal(drawn.logprob, expected[[0, 1], [3, 3]])
    assert drawn.likely[0].tolist() == [1, 3]
    assert torch.equal(drawn.likely_logprob[0], expected[0, [1, 3]])
    sampler.close(0)
    assert sampler(logits[1:], sampler.prepare([(1, 1)])) == Drawn(tokens=torch.tensor([3]))
