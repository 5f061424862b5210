"""Tokens are drawn as transformers' processors say, from one number that depends on the request alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.errors import RequestRefused
from stages.messages import Sampling
from stages.runners.sampling import DrawKey, Sampler, SamplingParams, pick

CPU = torch.device("cpu")
KEY = DrawKey(seed=5, stage="thinker")
LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.9, -1.0])


def sampler(**params: object) -> Sampler:
    return Sampler(SamplingParams(max_tokens=100, **params), KEY, device=CPU, suppressed=(1,), end_tokens=(3,))


def test_greedy_takes_the_best_token_that_is_allowed() -> None:
    assert Sampler(SamplingParams(max_tokens=1), KEY, device=CPU)(LOGITS, (), 0) == 1
    assert sampler()(LOGITS, (), 0) == 3


def test_the_repetition_penalty_counts_the_history() -> None:
    assert sampler(repetition_penalty=3.0)(LOGITS, (3,), 1) == 2


def test_the_end_token_waits_for_min_tokens() -> None:
    early = sampler(min_tokens=2)
    assert [early(LOGITS, (), position) for position in range(4)] == [2, 2, 3, 3]
    assert sampler(ignore_eos=True)(LOGITS, (), 50) == 2


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({"top_k": 2}, {2, 3}),
        ({"top_p": 0.5}, {3}),
        ({"min_p": 0.1}, {2, 3}),
        ({}, {0, 2, 3, 4}),
    ],
)
def test_filters_leave_what_they_should(params: dict[str, float], allowed: set[int]) -> None:
    draw = sampler(temperature=1.0, **params)
    assert {draw(LOGITS, (), position) for position in range(300)} == allowed


def test_draws_follow_the_distribution() -> None:
    draw = Sampler(SamplingParams(max_tokens=1, temperature=2.0), KEY, device=CPU)
    counts = np.bincount([draw(LOGITS, (), position) for position in range(4000)], minlength=5)
    expected = torch.softmax(LOGITS / 2, -1).numpy() * 4000
    # Pearson's statistic, 4 degrees of freedom: 18.5 is the 99.9th percentile, and the draws are fixed.
    assert ((counts - expected) ** 2 / expected).sum() < 18.5


def test_the_number_depends_on_each_part_of_the_key() -> None:
    keys = [
        DrawKey(seed=seed, stage=stage, choice=choice).uniform(position, group)
        for seed in (0, 1)
        for stage in ("thinker", "talker")
        for choice in (0, 1)
        for position in (0, 1, 11)
        for group in (0, 1)
    ]
    assert len(set(keys)) == len(keys)
    assert all(0 <= number < 1 for number in keys)
    # Pinned: a run must be reproducible with later versions.
    assert DrawKey(seed=0, stage="thinker").uniform(0) == pytest.approx(PINNED, abs=1e-15)


PINNED = 0.6092236634789849


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.floats(-50, 50, width=32), st.just(-math.inf)), min_size=1, max_size=40),
    st.floats(0, 1, exclude_max=True),
)
def test_the_inverse_never_picks_what_is_impossible(scores: list[float], uniform: float) -> None:
    tensor = torch.tensor(scores)
    if not torch.isfinite(tensor).any():
        return
    chosen = pick(tensor, uniform)
    probabilities = torch.softmax(tensor, -1).double().numpy()
    assert probabilities[chosen] > 0
    below, total = probabilities[:chosen].sum(), probabilities.sum()
    assert below <= uniform * total + 1e-9
    assert below + probabilities[chosen] >= uniform * total - 1e-9


def test_the_request_stands_over_the_defaults() -> None:
    defaults = SamplingParams(max_tokens=9, temperature=0.9, top_k=50)
    params = defaults.with_request(Sampling(temperature=0.0, min_tokens=2), "talker")
    assert params == SamplingParams(max_tokens=9, temperature=0.0, top_k=50, min_tokens=2)


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
    ],
)
def test_values_out_of_range_are_refused_by_their_key(asked: dict[str, float], key: str) -> None:
    with pytest.raises(RequestRefused, match=rf"request\.sampling\.talker\.{key}"):
        SamplingParams(max_tokens=9, temperature=1.0).with_request(Sampling(**asked), "talker")


def test_a_filter_that_cannot_act_is_refused() -> None:
    greedy = SamplingParams(max_tokens=9)
    with pytest.raises(RequestRefused, match=r"thinker\.top_p=0\.5 cannot act"):
        greedy.with_request(Sampling(top_p=0.5), "thinker")
    assert greedy.with_request(Sampling(top_p=0.5, temperature=0.0), "thinker").temperature == 0
