"""What a request may ask of a stage's draws, and the numbers that they depend on."""

import math

import numpy as np
import pytest

from stages.errors import RequestRefused
from stages.messages import Sampling
from stages.runners.sampling import DrawKey, SamplingParams, uniforms


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


def test_many_numbers_at_once_are_those_of_each_alone() -> None:
    keys = [DrawKey(seed=7, stage="talker", choice=choice) for choice in range(3)]
    found = uniforms([(key, 10 * index) for index, key in enumerate(keys)], (0, 1, 15))
    assert found.tolist() == [[key.uniform(10 * index, g) for g in (0, 1, 15)] for index, key in enumerate(keys)]
    assert uniforms([]).shape == (0, 1)
    assert abs(np.mean(uniforms([(keys[0], position) for position in range(4000)])) - 0.5) < 0.02


def test_the_request_stands_over_the_defaults() -> None:
    defaults = SamplingParams(max_tokens=9, temperature=0.9, top_k=50)
    given = {"temperature": 0.0, "min_tokens": 2, "presence_penalty": 0.5, "logit_bias": ((1, 2.0),), "stop": ("x",)}
    params = defaults.with_request(Sampling(**given), "talker")
    assert params == SamplingParams(max_tokens=9, top_k=50, **given)


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
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"frequency_penalty": math.nan}, "frequency_penalty"),
        ({"logit_bias": ((3, math.nan),)}, "logit_bias"),
        ({"stop": ("",)}, "stop"),
        ({"logprobs": -1}, "logprobs"),
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
    assert greedy.with_request(Sampling(top_p=1.0, top_k=0, min_p=0.0), "thinker") == greedy


@pytest.mark.parametrize("asked", [{"logit_bias": ((10, 1.0),)}, {"stop_token_ids": (-1,)}])
def test_tokens_that_do_not_exist_are_refused(asked: dict[str, object]) -> None:
    params = SamplingParams(max_tokens=9).with_request(Sampling(**asked), "thinker")
    with pytest.raises(RequestRefused, match=rf"thinker\.{next(iter(asked))}: -?1"):
        params.check_tokens(10, "thinker")
    SamplingParams(max_tokens=9, logit_bias=((9, 1.0),), stop_token_ids=(0,)).check_tokens(10, "thinker")
