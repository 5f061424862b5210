"""Whatever the schedule, each request's answer is its own: order and time of arrival, limits of batch, step and cache,
how edges are carried and how large chunks are, who is slow and who leaves are drawn at random, all at once.

Greedy requests are compared with transformers' `generate`, sampled ones with themselves alone.
"""

import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from stages.messages import Sampling
from tests.integration.in_process import COMPLETE, Asked, Pipeline
from tests.integration.qwen3_omni_reference import Reference
from tests.integration.test_qwen3_omni_parity import CONVERSATIONS, ask

BATCH = 8
BLOCK_TOKENS = 4
EXACT = {"code2wav": {"decode": "exact"}, **{name: {"kv_block_tokens": BLOCK_TOKENS} for name in ("thinker", "talker")}}
SEEDS = [pytest.param(range(6), id="6"), pytest.param(range(6, 200), id="200", marks=pytest.mark.soak)]


@dataclass(frozen=True)
class Expected:
    """What a request answers alone; of each language stage the blocks that it needs."""

    text_ids: list[int]
    codes: torch.Tensor
    waveform: torch.Tensor
    blocks: dict[str, int]


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Pipeline:
    return Pipeline(folder, max_batch=BATCH, tuning=EXACT)


def requests() -> list[Asked]:
    """Every kind of input; every second one sampled. Seven tokens and more, ten frames and more."""
    asked = []
    for index, conversation in enumerate(CONVERSATIONS.values()):
        one = ask(conversation, 7 + 3 * index, 41 - 4 * index)
        if index % 2:
            one.thinker = replace(one.thinker, temperature=0.9, top_p=0.95, min_tokens=index, frequency_penalty=0.2)
            one.talker = replace(one.talker, temperature=None, repetition_penalty=1.2)
            one.seed = index
        asked.append(one)
    return asked


def greedy(sampling: Sampling) -> bool:
    return sampling.temperature == 0


@pytest.fixture(scope="module")
def expected(pipeline: Pipeline, reference: Reference) -> list[Expected]:
    found = []
    for asked, conversation in zip(requests(), CONVERSATIONS.values(), strict=True):
        pipeline.schedule(tuning=EXACT, modes=COMPLETE)
        (alone,) = pipeline.run([asked])
        assert alone.error is None
        blocks = {
            name: max(-(-(row.start + row.tokens + 1) // BLOCK_TOKENS) for rows in pipeline.steps[name] for row in rows)
            for name in ("thinker", "talker")
        }
        answer = alone
        if greedy(asked.thinker):
            limits = {"text_tokens": asked.thinker.max_tokens, "codec_tokens": asked.talker.max_tokens}
            answer = reference.answer(conversation, **limits)
        found.append(Expected(answer.text_ids, answer.codes, answer.waveform, blocks))
    return found


def test_the_requests_differ(expected: list[Expected]) -> None:
    assert len({tuple(one.text_ids) for one in expected}) == BATCH
    assert sum(one.codes.shape[1] for one in expected) > 100


@pytest.mark.parametrize("seeds", SEEDS)
def test_any_schedule(pipeline: Pipeline, expected: list[Expected], seeds: range) -> None:
    hard: Counter[str] = Counter()
    for seed in seeds:
        check_schedule(pipeline, expected, seed)
        steps = [rows for name in ("thinker", "talker") for rows in pipeline.steps[name]]
        hard["preempted"] += pipeline.preempted > 0
        hard["chunks"] += any(row.tokens and not row.units for rows in steps for row in rows)
        hard["mixed"] += any({row.phase for row in rows} == {"prefill", "decode"} for rows in steps)
    assert min(hard.values()) > len(seeds) // 3, hard


def check_schedule(pipeline: Pipeline, expected: list[Expected], seed: int) -> None:
    """All that can be drawn is drawn from the seed."""
    draw = np.random.default_rng(seed)
    max_batch = int(draw.integers(1, BATCH + 1))
    step_tokens = int(draw.choice([max_batch, draw.integers(max_batch, 41), 2048]))
    least = {name: max(one.blocks[name] for one in expected) for name in ("thinker", "talker")}
    first = int(draw.integers(1, 7))
    language = {"step_tokens": step_tokens, "kv_block_tokens": BLOCK_TOKENS}
    frames = {"decode": "exact", "first_chunk_frames": first, "chunk_frames": int(draw.integers(first, 14))}
    modes = {**COMPLETE, **{name: str(draw.choice(["complete", "incremental"])) for name in ("thinker", "talker")}}
    pipeline.schedule(
        tuning={"thinker": language, "talker": language, "code2wav": frames},
        modes=modes,
        kv_blocks={name: int(blocks * draw.uniform(1, 2.5)) for name, blocks in least.items()},
        max_batch=max_batch,
    )
    order = draw.permutation(BATCH)
    asked = [requests()[index] for index in order]
    leaving = {int(uid): int(draw.integers(0, 70)) for uid in draw.permutation(BATCH)[: draw.integers(0, 4)]}
    answers = pipeline.run(
        asked,
        arrivals=draw.integers(0, draw.choice([1, 40]), BATCH).tolist(),
        leaving=leaving,
        pace={name: int(draw.integers(1, 6)) for name in ("thinker", "talker", "code2wav") if draw.random() < 0.4},
    )
    assert pipeline.left() == {}, seed
    stayed = 0
    for uid, (answer, index) in enumerate(zip(answers, order, strict=True)):
        own = expected[index]
        if "code2wav" not in answer.reasons:
            assert uid in leaving, (seed, uid)
            continue
        stayed += 1
        assert answer.error is None, (seed, answer.error)
        assert answer.text_ids == own.text_ids, (seed, uid)
        assert torch.equal(answer.codes, own.codes), (seed, uid)
        torch.testing.assert_close(answer.waveform, own.waveform, rtol=0, atol=1e-4)
    assert stayed >= BATCH - len(leaving)
