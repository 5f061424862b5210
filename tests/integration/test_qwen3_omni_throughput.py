"""Sixteen requests at once against `generate` one by one, in one run: the same answers for a sixth of the work."""

import os
import time

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from stages.models.qwen3_omni.tiny import tiny_checkpoint
from tests.integration.in_process import COMPLETE, Pipeline
from tests.integration.qwen3_omni_reference import Conversation, Reference
from tests.integration.test_qwen3_omni_parity import ask

AT_ONCE, TEXT_TOKENS, CODEC_TOKENS = 16, 24, 64
WORDS = [
    "red",
    "blue",
    "green",
    "small",
    "large",
    "cold",
    "warm",
    "old",
    "new",
    "fast",
    "slow",
    "round",
    "flat",
    "loud",
    "calm",
    "dark",
]
STREAMED = {**COMPLETE, "thinker": "incremental", "talker": "incremental"}
EXACT = {"code2wav": {"decode": "exact"}}


@pytest.mark.soak  # a ratio of times belongs in no run that has to pass on a busy machine
def test_at_least_six_times_the_requests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Measured in the time of the processor, so that other work on the machine does not count."""
    folder = tiny_checkpoint(tmp_path_factory.mktemp("omni_cache"))
    talks: list[Conversation] = [[("user", [f"Tell me about the {word} thing."])] for word in WORDS]
    assert len(talks) == AT_ONCE
    pipeline = Pipeline(folder, max_batch=AT_ONCE, tuning=EXACT, modes=STREAMED)
    asked = [ask(talk, TEXT_TOKENS, CODEC_TOKENS) for talk in talks]
    pipeline.run(asked[:2])
    start = time.process_time()
    answers = pipeline.run(asked)
    ours_s = time.process_time() - start
    reference = Reference.load(folder)
    reference.answer(talks[0], text_tokens=4, codec_tokens=4)
    start = time.process_time()
    expected = [reference.answer(talk, text_tokens=TEXT_TOKENS, codec_tokens=CODEC_TOKENS) for talk in talks]
    theirs_s = time.process_time() - start
    for answer, own in zip(answers, expected, strict=True):
        assert answer.error is None, answer.error
        assert answer.text_ids == own.text_ids
        assert torch.equal(answer.codes, own.codes)
        torch.testing.assert_close(answer.waveform, own.waveform, rtol=0, atol=1e-4)
    assert theirs_s / ours_s > 6, f"{theirs_s:.2f} s one by one, {ours_s:.2f} s at once"
