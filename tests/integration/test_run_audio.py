"""The sound of `omni run` is the expected one, sample by sample, however stages are fed and however many there are."""

import numpy as np
import pytest

from omni_cli.artifacts.audio import to_pcm16
from tests.integration.cli import Ended, batch, check_trace, leaves_nothing
from tests.synthetic_answers import expected_audio, expected_mix

EDGES = {
    "synthetic": (("talker", "thinker"), ("code2wav", "talker")),
    "synthetic_dag": (
        ("talker", "thinker"), ("singer", "thinker"), ("code2wav", "talker"),
        ("mixer", "talker"), ("mixer", "singer"), ("mixer", "thinker"),
    ),
}  # fmt: skip
PROMPTS = ("one", "two words", "three words here, and a few more of them", "四 words", "five", "a\nb")
LINES = [
    *({"id": f"auto-{seed}", "prompt": prompt, "seed": seed} for seed, prompt in enumerate(PROMPTS)),
    *({"id": f"long-{frames}", "prompt": "the same", "seed": 7, "synthetic": {"frames": frames}} for frames in (1, 70)),
]


def fed(recipe: str, mode: str, slots: int | None = None) -> list[str]:
    """How each consumer is fed; with few slots a producer has to wait for room again and again."""
    words = [f"pipeline.stages.{consumer}.inputs.{producer}={mode}" for consumer, producer in EDGES[recipe]]
    rings = [f"deploy.stages.{consumer}.inputs.{producer}.slots={slots}" for consumer, producer in EDGES[recipe]]
    return [f"recipe={recipe}", *words, *(rings if slots else [])]


def several(recipe: str, count: int) -> list[str]:
    stages = {stage for edge in EDGES[recipe] for stage in edge}
    return [f"deploy.stages.{stage}.replicas={count}" for stage in sorted(stages)]


RUNS = {
    "complete": fed("synthetic", "complete"),
    "incremental through two slots": fed("synthetic", "incremental", 2),
    "incremental, three replicas of each": [*fed("synthetic", "incremental"), *several("synthetic", 3)],
    "complete, two replicas of each": [*fed("synthetic", "complete"), *several("synthetic", 2)],
    "dag": fed("synthetic_dag", "complete"),
    "dag, incremental, two replicas of each": [*fed("synthetic_dag", "incremental"), *several("synthetic_dag", 2)],
}


def assert_sounds(ended: Ended, name: str, expected) -> None:
    for line in LINES:
        samples, rate_hz = ended.audio(line["id"], f"{name}.wav")
        wanted = np.array(expected(line["prompt"], line["seed"], line.get("synthetic", {}).get("frames")))
        assert rate_hz == 24_000
        assert np.array_equal(to_pcm16(samples), to_pcm16(wanted)), line["id"]


@pytest.mark.parametrize("name", RUNS)
def test_audio_is_the_expected_one(tmp_path, name):
    with leaves_nothing():
        ended = batch(tmp_path, LINES, *RUNS[name])
    assert ended.code == 0, ended.err
    assert {line["id"]: ended.text(line["id"]) for line in LINES} == {line["id"]: line["prompt"] for line in LINES}
    assert_sounds(ended, "audio", expected_audio)
    if name.startswith("dag"):
        assert_sounds(ended, "audio_mix", expected_mix)
    check_trace(ended.run)

    events = ended.events
    submitted = {event["process"] for event in events if event["kind"] == "stage_submitted"}
    assert (("talker.1" in submitted), ("code2wav.1" in submitted)) == (("replicas" in name),) * 2
    pieces = max(event["message"]["seq"] for event in events if event["kind"] == "message_put")
    assert (pieces > 0) == ("incremental" in name)
