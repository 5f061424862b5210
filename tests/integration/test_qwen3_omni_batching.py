"""A request's text and codes do not depend on its company, on chunks, on streaming or on preemption.

Alone it answers what transformers' `generate` answers (test_qwen3_omni_parity); here it is compared with itself alone.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from stages.messages import Sampling
from tests.integration.in_process import BITWISE, COMPLETE, Answered, Asked, Pipeline
from tests.integration.test_qwen3_omni_parity import CONVERSATIONS, SILENCING, ask

BATCH = 8
STREAMED = {**COMPLETE, "thinker": "incremental", "talker": "incremental"}


def mixed() -> list[Asked]:
    """Eight requests: every kind of input; greedy and sampled; long and short; one that is empty."""
    kinds = list(CONVERSATIONS)
    asked = []
    for index in range(BATCH - 1):
        greedy = index % 2 == 0
        talker = Sampling(temperature=0.0) if greedy else Sampling(repetition_penalty=1.2, top_p=0.9)
        asked.append(
            Asked(
                conversation=ask(CONVERSATIONS[kinds[index]], 1, 1).conversation,
                thinker=Sampling(
                    temperature=0.0 if greedy else 0.9, top_k=None if greedy else 20, max_tokens=6 + 5 * index,
                    presence_penalty=None if index % 3 else 0.3,
                ),
                talker=replace(talker, max_tokens=40 - 4 * index),
                seed=index,
            )
        )  # fmt: skip
    asked.append(ask([("user", [*SILENCING, "both"])], 8, 20))
    return asked


def tuning(step_tokens: int = 2048) -> dict[str, dict[str, object]]:
    """Blocks are small, so that sequences lie in many of them."""
    language = {"step_tokens": step_tokens, "kv_block_tokens": 4}
    return {**BITWISE, "thinker": language, "talker": language}


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Pipeline:
    return Pipeline(folder, max_batch=BATCH, tuning=tuning())


@pytest.fixture(scope="module")
def alone(pipeline: Pipeline) -> list[Answered]:
    pipeline.schedule(tuning=tuning())
    return [pipeline.run([asked])[0] for asked in mixed()]


def check(answers: Sequence[Answered], alone: Sequence[Answered]) -> None:
    for answer, own in zip(answers, alone, strict=True):
        assert answer.error is None, answer.error
        assert answer.text_ids == own.text_ids
        assert answer.text == own.text
        assert torch.equal(answer.codes, own.codes)
        assert answer.reasons == own.reasons


def test_the_requests_differ(alone: list[Answered]) -> None:
    assert len({answer.text for answer in alone}) == BATCH
    assert {answer.reasons["talker"] for answer in alone} == {"length", "stop", "empty"}
    assert sum(len(answer.text_ids) for answer in alone) > 60
    assert sum(answer.codes.shape[1] for answer in alone) > 100


@pytest.mark.parametrize("step_tokens", [BATCH, 15, 64, 2048])
@pytest.mark.parametrize("modes", [COMPLETE, STREAMED], ids=["whole", "streamed"])
def test_a_batch_of_eight(pipeline: Pipeline, alone: list[Answered], step_tokens: int, modes: dict[str, str]) -> None:
    pipeline.schedule(tuning=tuning(step_tokens), modes=modes)
    check(pipeline.run(mixed()), alone)
    # With few tokens a step, the first requests have ended before the last ones begin.
    assert max(len(rows) for rows in pipeline.steps["thinker"]) >= (3 if step_tokens < 64 else 5)
    for name in ("thinker", "talker"):
        assert max(sum(row.tokens for row in rows) for rows in pipeline.steps[name]) <= step_tokens
    both = [rows for rows in pipeline.steps["thinker"] if {row.phase for row in rows} == {"prefill", "decode"}]
    assert bool(both) == (step_tokens < 2048)


@pytest.mark.parametrize("modes", [COMPLETE, STREAMED], ids=["whole", "streamed"])
def test_requests_that_come_later(pipeline: Pipeline, alone: list[Answered], modes: dict[str, str]) -> None:
    pipeline.schedule(tuning=tuning(), modes=modes)
    check(pipeline.run(mixed(), arrivals=[0, 3, 3, 7, 12, 5, 1, 20]), alone)
    firsts = [row.uid for rows in pipeline.steps["thinker"] for row in rows if row.start == 0 and row.units]
    assert firsts == [0, 6, 1, 2, 5, 3, 4, 7]
    assert any(len({row.phase for row in rows}) == 2 for rows in pipeline.steps["talker"])


@pytest.mark.parametrize("modes", [COMPLETE, STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize(("step_tokens", "blocks"), [(9, 26), (2048, 28)])
def test_preemption(
    pipeline: Pipeline, alone: list[Answered], modes: dict[str, str], step_tokens: int, blocks: int
) -> None:
    """Caches that hold the longest of the requests, and little more."""
    pipeline.schedule(tuning=tuning(step_tokens), modes=modes, kv_blocks={"thinker": blocks, "talker": blocks})
    check(pipeline.run(mixed(), arrivals=[2 * index for index in range(BATCH)]), alone)
    again = {
        name: {row.uid for rows in pipeline.steps[name] for row in rows if row.start == 0 and row.position > 0}
        for name in ("thinker", "talker")
    }
    assert again["thinker"]
    assert again["talker"]
    assert pipeline.preempted >= len(again["thinker"]) + len(again["talker"])


def test_the_talker_starts_on_the_first_word_and_waits_for_the_next(pipeline: Pipeline) -> None:
    pipeline.schedule(tuning=tuning(), modes=STREAMED)
    asked = ask(CONVERSATIONS["text"], 20, 40)
    (streamed,) = pipeline.run([asked])
    stages = [name for name, _ in pipeline.log]
    assert stages.index("talker") < 3  # after the thinker's first step
    # Then two tokens behind: token j is spoken when j + 1 has come and is not the last.
    thinker = 0
    spoken = -1
    for name in stages:
        thinker += name == "thinker"
        spoken += name == "talker"
        if name == "talker" and thinker < len(streamed.text_ids):
            assert spoken <= max(0, thinker - 2)
    pipeline.schedule(tuning=tuning(), modes=COMPLETE)
    check([streamed], pipeline.run([asked]))


def test_a_request_that_is_dropped_leaves_the_others_alone(pipeline: Pipeline, alone: list[Answered]) -> None:
    """Its blocks and its place in the sampler go to the next one."""
    requests = mixed()
    bad = ask([("user", ["<|image_pad|> is not an image", *CONVERSATIONS["image"][0][1]])], 6, 16)
    pipeline.schedule(tuning=tuning())
    answers = pipeline.run([requests[0], bad, *requests[1:], bad])
    assert answers[1].error is not None
    check([answers[0], *answers[2:-1]], alone)
