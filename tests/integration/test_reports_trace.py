"""Reports about numbers: that they are measured in the stages, add up, and cover requests that fail."""

import json
from pathlib import Path

import pytest

from tests.integration.cli import Ended, batch, check_trace, leaves_nothing, omni

DELAYS_MS = {"thinker": 100, "talker": 200, "code2wav": 300}
SERIAL = ("pipeline.stages.talker.inputs.thinker=complete", "pipeline.stages.code2wav.inputs.talker=complete")
SLOWED = [f"synthetic.delay_ms.{stage}={delay}" for stage, delay in DELAYS_MS.items()]


def shown(run: Path) -> dict[str, dict]:
    """The requests of a run as `omni trace show --json` has them, by id."""
    ended = omni("trace", "show", str(run), "--json", cwd=run.parent)
    assert ended.code == 0, ended.err
    return {request["id"]: request for request in json.loads(ended.out)["requests"]}


def spans(request: dict) -> dict[str, dict]:
    return {stage["stage"]: stage for stage in request["stages"]}


def test_r92_serial_stage_times_add_up_to_the_whole(tmp_path):
    with leaves_nothing():
        ended = omni("run", "recipe=synthetic", *SERIAL, *SLOWED, "synthetic.frames=1", "--prompt", "a", cwd=tmp_path)
    assert ended.code == 0, ended.err
    (request,) = shown(ended.run).values()
    stages = spans(request)
    steps = [event for event in ended.events if event["kind"] == "step_done"]
    for name, delay in DELAYS_MS.items():
        run_ms = sum((step["end_ns"] - step["t"]) / 1e6 for step in steps if step["src"] == f"{name}.0")
        assert stages[name]["run_ms"] == pytest.approx(run_ms, abs=0.001)
        assert run_ms >= delay
        parts = [stages[name][f"{part}_ms"] for part in ("queue", "wait", "run", "stall")]
        assert sum(parts) == pytest.approx(stages[name]["total_ms"], abs=0.001)
    total = sum(stage["total_ms"] for stage in stages.values())
    assert request["total_ms"] >= max(stage["total_ms"] for stage in stages.values())
    # a stage is submitted when the one before it has put its result, which is a moment before that one ends
    assert request["total_ms"] == pytest.approx(total, abs=min(DELAYS_MS.values()) - 10), "none is missing"
    assert DELAYS_MS["thinker"] <= request["ttft_ms"] < request["ttfa_ms"] <= request["total_ms"]
    check_trace(ended.run)


WORDS = "one two three four"
MIXED = [
    *({"id": f"good-{n}", "prompt": WORDS} for n in range(4)),
    {"id": "failed", "prompt": WORDS, "synthetic": {"fail": {"stage": "code2wav", "at": 2}}},
    {"id": "late", "prompt": WORDS, "timeout_s": 0.3, "synthetic": {"never_end": True}},
]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Ended:
    """Requests that share the stages, one that fails and one that runs out of time."""
    with leaves_nothing():
        words = ("synthetic.delay_ms.talker=10", "deploy.stages.talker.max_batch=1")
        return batch(tmp_path_factory.mktemp("mixed"), MIXED, "recipe=synthetic", *words)


@pytest.fixture(scope="module")
def requests(mixed) -> dict[str, dict]:
    return shown(mixed.run)


def test_r92_overlapping_requests_are_counted_each_for_itself(requests):
    talkers = []
    for n in range(4):
        request = requests[f"good-{n}"]
        for stage in request["stages"]:  # the union of the spans is the request, or less
            assert request["admitted_ms"] <= stage["submitted_ms"] < stage["end_ms"]
            assert stage["end_ms"] <= request["admitted_ms"] + request["total_ms"]
            assert stage["run_ms"] > 0
        talkers.append(spans(request)["talker"])
    # the talker takes one at a time: waiting for one's turn is told from running
    assert max(span["wait_ms"] for span in talkers) > max(span["run_ms"] for span in talkers)


def test_r92_requests_that_failed_or_ran_out_of_time_are_there_with_their_status(mixed, requests):
    assert {name: request["status"] for name, request in requests.items()} == {
        **{f"good-{n}": "finished" for n in range(4)}, "failed": "failed", "late": "failed",
    }  # fmt: skip
    assert requests["failed"]["error"]["stage"] == "code2wav"
    assert spans(requests["failed"])["code2wav"]["status"] == "failed"
    assert requests["late"]["total_ms"] >= 300
    assert "timeout_s" in requests["late"]["error"]["message"]
    check_trace(mixed.run)
