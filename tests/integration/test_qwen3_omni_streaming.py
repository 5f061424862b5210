"""Streamed speech is the whole speech: the same text and codes, and a waveform within 1e-4 of one pass over all codes.

In one process, with the real schedulers and runners; thinker to talker to code2wav, all edges are incremental.
"""

import os
from pathlib import Path

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from stages.messages import Sampling
from tests.integration.in_process import COMPLETE, Answered, Asked, Pipeline
from tests.integration.qwen3_omni_reference import Reference
from tests.integration.test_qwen3_omni_parity import CONVERSATIONS, SILENCING, ask

TOLERANCE = 1e-4
FIRST, THEN = 3, 10
CHUNKS = {"code2wav": {"decode": "exact", "first_chunk_frames": FIRST, "chunk_frames": THEN}}
STREAMED = {**COMPLETE, "thinker": "incremental", "talker": "incremental"}


@pytest.fixture(scope="module")
def streamed(folder: Path) -> Pipeline:
    return Pipeline(folder, tuning=CHUNKS, modes=STREAMED)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Pipeline:
    return Pipeline(folder, tuning=CHUNKS, modes=COMPLETE)


def one_pass(reference: Reference, codes: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        wave: torch.Tensor = reference.model.code2wav(codes[None].long())
    return wave.reshape(-1)


def check_wave(answer: Answered, reference: Reference) -> None:
    assert answer.error is None, answer.error
    assert answer.codes is not None
    torch.testing.assert_close(answer.waveform, one_pass(reference, answer.codes), rtol=0, atol=TOLERANCE)


def ignoring_the_end(text_tokens: int, codec_tokens: int, kind: str = "text") -> Asked:
    """A request whose lengths are what its limits say."""
    asked = ask(CONVERSATIONS[kind], 1, 1)
    asked.thinker = Sampling(temperature=0.0, max_tokens=text_tokens, ignore_eos=True)
    asked.talker = Sampling(temperature=0.0, max_tokens=codec_tokens, ignore_eos=True)
    return asked


@pytest.mark.parametrize("kind", CONVERSATIONS)
def test_streamed_equals_generate(streamed: Pipeline, reference: Reference, kind: str) -> None:
    expected = reference.answer(CONVERSATIONS[kind], text_tokens=20, codec_tokens=48)
    (answer,) = streamed.run([ask(CONVERSATIONS[kind], 20, 48)])
    assert answer.text_ids == expected.text_ids
    assert torch.equal(answer.codes, expected.codes)
    check_wave(answer, reference)


def test_streamed_equals_whole_with_all_requests_at_once(
    streamed: Pipeline, whole: Pipeline, reference: Reference
) -> None:
    """More requests than places, greedy and sampled, lengths from nothing to several chunks."""
    asked = [
        Asked(
            conversation=ask(conversation, 1, 1).conversation,
            thinker=Sampling(temperature=temperature, max_tokens=6 + 3 * index),
            talker=Sampling(temperature=temperature, max_tokens=1 + 7 * index),
            seed=index,
        )
        for index, conversation in enumerate([*CONVERSATIONS.values(), [("user", [*SILENCING, "both"])]])
        for temperature in (0.0, 0.8)
    ]
    for left, right in zip(streamed.run(asked), whole.run(asked), strict=True):
        assert left.text_ids == right.text_ids
        assert left.reasons == right.reasons
        assert torch.equal(left.codes, right.codes)
        if left.codes.shape[1]:
            check_wave(left, reference)
            check_wave(right, reference)
        else:
            assert left.waveform.numel() == right.waveform.numel() == 0


@pytest.mark.parametrize(
    "frames", [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + THEN - 1, FIRST + THEN, FIRST + THEN + 1]
)
def test_every_length_around_a_chunk_ends_once_with_all_its_samples(
    streamed: Pipeline, reference: Reference, frames: int
) -> None:
    (answer,) = streamed.run([ignoring_the_end(6, frames + 1)])
    assert answer.error is None
    assert answer.reasons["code2wav"] == ("length" if frames else "empty")
    assert answer.codes.shape == (4, frames)
    assert len(answer.waveform) == max(frames * 1920 - 555, 0)
    if frames:
        check_wave(answer, reference)


def test_a_piece_of_sound_comes_as_soon_as_its_frames_are_there(streamed: Pipeline) -> None:
    (answer,) = streamed.run([ignoring_the_end(6, FIRST + 2 * THEN + 1)])
    assert answer.error is None
    log = [stage for stage, _ in streamed.log]
    # the talker's first row makes no frame, its next one the first
    frames_before = [log[:index].count("talker") - 1 for index, stage in enumerate(log) if stage == "audio"]
    assert frames_before == [FIRST, FIRST + THEN, FIRST + 2 * THEN]


def test_sound_comes_before_the_text_is_complete(streamed: Pipeline, whole: Pipeline) -> None:
    asked = [ignoring_the_end(40, 60, kind) for kind in ("text", "image", "audio")]
    for pipeline, early in ((streamed, True), (whole, False)):
        for uid, answer in enumerate(pipeline.run(asked)):
            assert answer.error is None
            last_text = max(index for index, step in enumerate(pipeline.log) if step == ("thinker", uid))
            assert (pipeline.log.index(("audio", uid)) < last_text) == early
