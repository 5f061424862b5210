"""Traces that real processes have written, with every kind of ending: clean as they are, and found out when damaged."""

import json
import os
import random
import signal
from pathlib import Path

import pytest

from omni_cli.trace.check import Checked, check
from omni_cli.trace.reader import TraceReader
from omni_cli.trace.recorded_plan import recorded_plan
from omni_cli.trace.replay import Replay
from tests.integration.cli import kill, omni, start, wait_for_event
from tests.trace.mutations import KINDS, is_decision, mutate, only_ordinals_show, renumber
from tests.trace.simulated_run import TraceOfPlan

WORDS = "one two three four five six"
BATCH = (
    {"id": "plain", "prompt": WORDS},
    {"id": "text", "prompt": WORDS, "modalities": ["text"]},
    {"id": "raise", "prompt": WORDS, "synthetic": {"fail": {"stage": "talker", "at": 3, "kind": "raise"}}},
    {"id": "long", "prompt": WORDS, "synthetic": {"frames": 40}},
    {"id": "memory", "prompt": WORDS, "synthetic": {"fail": {"stage": "thinker", "at": 1, "kind": "oom"}}},
    {"id": "late", "prompt": WORDS},
)
DEATH = (
    *BATCH[:2],
    {"id": "exit", "prompt": WORDS, "synthetic": {"fail": {"stage": "talker", "at": 3, "kind": "exit"}}},
    *BATCH[3:],
)
HANG = (
    {"id": "hang", "prompt": WORDS, "timeout_s": 0.2, "synthetic": {"fail": {"stage": "talker", "kind": "hang"}}},
    {"id": "behind", "prompt": WORDS, "timeout_s": 0.2},
)
STREAMS = (  # through rings with few slots, so that the producers wait for room
    "pipeline.stages.talker.inputs.thinker=incremental",
    "pipeline.stages.code2wav.inputs.talker=incremental",
    "deploy.stages.talker.inputs.thinker.slots=2",
    "deploy.stages.code2wav.inputs.talker.slots=2",
    "synthetic.payload_bytes=100000",
)


def run_batch(cwd: Path, lines: tuple[dict, ...], *words: str) -> Path:
    (cwd / "batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return omni("run", "--input", "batch.jsonl", "--out", "run", *words, cwd=cwd).run


def run_until(cwd: Path, number: int) -> Path:
    """A long request, ended by a signal in the middle of the talker's work."""
    out = cwd / "run"
    words = ("recipe=synthetic", "synthetic.delay_ms.talker=50", "synthetic.frames=400", "deploy.drain_timeout_s=2")
    process = start("run", *words, "--prompt", WORDS, "--out", str(out), cwd=cwd, process_group=0)
    wait_for_event(out / "trace.jsonl", "step_done", src="talker.0", index=1)
    if number == signal.SIGKILL:
        kill(process.pid)
    else:
        os.kill(process.pid, number)
    process.communicate(timeout=60)
    return out


RUNS = {
    "line": lambda cwd: run_batch(cwd, BATCH, "recipe=synthetic"),
    "streams": lambda cwd: run_batch(cwd, BATCH, "recipe=synthetic", *STREAMS),
    "dag": lambda cwd: run_batch(cwd, BATCH, "recipe=synthetic_dag"),
    "death": lambda cwd: run_batch(cwd, DEATH, "recipe=synthetic", "deploy.stages.talker.retry=0"),
    "hang": lambda cwd: run_batch(cwd, HANG, "recipe=synthetic", "deploy.drain_timeout_s=0.2"),
    "interrupted": lambda cwd: run_until(cwd, signal.SIGINT),
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TraceOfPlan]:
    found = {}
    for name, run in RUNS.items():
        path = run(tmp_path_factory.mktemp(name)) / "trace.jsonl"
        found[name] = TraceOfPlan(TraceReader(path), recorded_plan(path, None))
    return found


@pytest.mark.parametrize("name", RUNS)
def test_a_real_trace_is_clean_and_decided_alike(traces, name):
    written = Checked(traces[name])
    replay = Replay(traces[name].plan, written)
    assert replay.run() == []
    assert written.findings == []
    assert replay.decisions == sum(map(is_decision, traces[name]))


def test_the_runs_end_in_every_way(traces):
    kinds = {name: {type(line.event).__name__ for line in trace} for name, trace in traces.items()}
    assert {"RequestFinished", "RequestFailed", "StageFailed"} <= kinds["line"] & kinds["dag"]
    assert "RequestCancelled" in kinds["interrupted"]
    deaths = [line.event for line in traces["death"] if type(line.event).__name__ == "ProcessDead"]
    assert [dead.process for dead in deaths if not dead.expected] == ["talker.0"]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("kind", KINDS)
def test_of_480_damaged_real_traces_every_one_is_found_out(traces, name, kind):
    rng = random.Random(f"{name} {kind}")
    trace = traces[name]
    missed = 0
    for _ in range(20):
        mutation = mutate(trace, kind, rng)
        assert check(mutation.trace), mutation.said
        damaged = Checked(renumber(mutation.trace))
        if not Replay(trace.plan, damaged).run() and not damaged.findings:
            assert only_ordinals_show(mutation, trace), mutation.said
            missed += 1
    assert missed <= 4, "what only the ordinals show is rare"


def test_the_trace_of_a_killed_parent_is_truncated_and_only_that(tmp_path):
    folder = run_until(tmp_path, signal.SIGKILL)
    (finding,) = check(TraceReader(folder / "trace.jsonl"))
    assert finding.text.startswith("truncated at ")
    checked = omni("trace", "check", str(folder), cwd=tmp_path)
    assert checked.code == 1
    assert "truncated at " in checked.out


def test_a_failed_run_shows_where_it_failed(tmp_path):
    fail = ("synthetic.fail.stage=talker", "synthetic.fail.at=1", "--out", "run")
    failed = omni("run", "recipe=synthetic", *fail, "--prompt", WORDS, cwd=tmp_path)
    assert failed.code == 1
    shown = omni("trace", "show", "run", "--json", cwd=tmp_path)
    (request,) = json.loads(shown.out)["requests"]
    assert request["status"] == "failed"
    assert request["error"]["stage"] == "talker"
    stages = {stage["stage"]: stage["status"] for stage in request["stages"]}
    assert stages == {"thinker": "finished", "talker": "failed"}
