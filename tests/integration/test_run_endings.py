"""`omni run` when something dies, hangs or is interrupted in the middle: who fails, who does not, and how soon."""

import json
import os
import signal
import time

from tests.integration.cli import batch, check_trace, kill, leaves_nothing, read_events, start, wait_for_event

WORDS = "one two three four five six"
SECOND_NS = 1_000_000_000


def begin(cwd, lines, *words: str, **popen):
    (cwd / "batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return start("run", *words, "--input", "batch.jsonl", "--out", "run", cwd=cwd, **popen)


def results(cwd) -> dict[str, dict]:
    lines = (cwd / "run/results.jsonl").read_text(encoding="utf-8").splitlines()
    return {record["request_id"]: record for record in map(json.loads, lines)}


def test_a_killed_stage_fails_its_requests_within_a_second_and_the_others_go_on(tmp_path):
    lines = [
        *({"id": f"audio-{n}", "prompt": WORDS, "synthetic": {"never_end": True}} for n in range(2)),
        *({"id": f"text-{n}", "prompt": WORDS, "modalities": ["text"]} for n in range(3)),
    ]
    slow = ("recipe=synthetic", "synthetic.delay_ms.thinker=50", "deploy.stages.thinker.max_batch=2",
            "deploy.stages.talker.restarts=0")  # fmt: skip
    trace = tmp_path / "run/trace.jsonl"
    with leaves_nothing():
        process = begin(tmp_path, lines, *slow)
        pid = wait_for_event(trace, "process_started", process="talker.0")["pid"]
        wait_for_event(trace, "step_done", src="talker.0")
        killed_ns = time.monotonic_ns()
        kill(pid)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    events = read_events(trace)
    failed = [event for event in events if event["kind"] == "request_failed"]
    assert len(failed) == 2
    assert all(event["t"] - killed_ns < SECOND_NS for event in failed)
    for n in range(2):
        error = results(tmp_path)[f"audio-{n}"]["error"]
        assert (error["stage"], error["kind"]) == ("talker", "ProcessDied")
        why = "failed in stage talker: ProcessDied: talker.0: killed by SIGKILL (not run again: no replica is left)"
        assert error["message"].endswith(why)
    assert {results(tmp_path)[f"text-{n}"]["status"] for n in range(3)} == {"finished"}
    assert "failed: stage process talker.0 died: killed by SIGKILL\n2 of 5 requests failed\n" in said
    check_trace(tmp_path / "run")


def test_a_stage_that_hangs_does_not_hold_up_the_end(tmp_path):
    """The request's own limit ends it; nothing waits out `deploy.drain_timeout_s` after that."""
    hang = {"id": "hang", "prompt": WORDS, "timeout_s": 1, "synthetic": {"fail": {"stage": "talker", "kind": "hang"}}}
    with leaves_nothing():
        lines = [hang, {"id": "text", "prompt": WORDS, "modalities": ["text"]}]
        ended = batch(tmp_path, lines, "recipe=synthetic", "deploy.drain_timeout_s=600")
    assert ended.code == 1
    assert {name: result["status"] for name, result in ended.results.items()} == {"hang": "failed", "text": "finished"}
    assert "request hang failed in stage talker: DeadlineExceeded: not done after timeout_s=1" in ended.err
    assert "talker.0 has not let go of its requests" in ended.err
    events = ended.events
    dead = {event["process"]: event["cause"] for event in events if event["kind"] == "process_dead"}
    assert dead == {"thinker.0": "exit code 0", "talker.0": "killed by SIGTERM", "code2wav.0": "exit code 0"}
    (failed,) = [event for event in events if event["kind"] == "request_failed"]
    assert events[-1]["t"] - failed["t"] < 10 * SECOND_NS
    check_trace(ended.run)


def test_an_interrupted_batch_keeps_what_is_finished_and_can_be_resumed(tmp_path):
    lines = [{"id": "short", "prompt": "one"}, {"id": "long", "prompt": WORDS}]
    words = ("recipe=synthetic", "synthetic.delay_ms.talker=100")
    with leaves_nothing():
        process = begin(tmp_path, lines, *words, process_group=0)
        uid = wait_for_event(tmp_path / "run/trace.jsonl", "request_admitted", request_id="short")["uid"]
        wait_for_event(tmp_path / "run/trace.jsonl", "request_finished", uid=uid)
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does: everybody in the group gets it
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "\ninterrupted: 1 of 2 requests finished; --resume run does the rest\nfiles: run\n" in said
    assert {name: result["status"] for name, result in results(tmp_path).items()} == {
        "short": "finished",
        "long": "cancelled",
    }
    assert (tmp_path / "run/short/audio.wav").exists()
    check_trace(tmp_path / "run")

    resumed = batch(tmp_path, lines, *words, "--resume", "run")
    assert resumed.code == 0, resumed.err
    admitted = [e["request_id"] for e in read_events(tmp_path / "run/trace-2.jsonl") if e["kind"] == "request_admitted"]
    assert admitted == ["long"]
    check_trace(tmp_path / "run")
