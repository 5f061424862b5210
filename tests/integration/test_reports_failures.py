"""Reports about failures on the way: whoever fails, the others go on, the run says who it was, and the trace tells."""

import json
import os
import signal

from tests.integration.cli import batch, check_trace, leaves_nothing, omni, read_events, start, wait_for_event

WORDS = "one two three four five six"
STAGES = ("thinker", "talker", "code2wav")


def fault(stage: str, kind: str, at: int = 3) -> dict:
    return {"id": f"{stage}-{kind}", "prompt": WORDS, "synthetic": {"fail": {"stage": stage, "at": at, "kind": kind}}}


def test_r04_r93_a_stage_that_raises_ends_the_run_at_once(tmp_path):
    with leaves_nothing():
        words = ("recipe=synthetic", "synthetic.fail.stage=thinker", "synthetic.fail.at=3", "--out", "run")
        ended = omni("run", *words, "--prompt", WORDS, cwd=tmp_path, limit_s=60)
    assert ended.code == 1
    assert ended.traced_s < 60
    assert ended.out == "one two three\n"  # the line that broke off is ended
    failures = [line for line in ended.err.splitlines() if "failed" in line]
    assert failures == [
        "failed: request request failed in stage thinker: RuntimeError: stage 'thinker' raises on purpose at unit 3",
        "1 of 1 requests failed",
    ]
    assert json.loads((ended.run / "manifest.json").read_bytes())["status"] == "failed"
    check_trace(ended.run)

    events = ended.events
    (failed,) = [event for event in events if event["kind"] == "stage_failed"]
    assert (failed["src"], failed["error"]["kind"]) == ("thinker.0", "RuntimeError")
    own = [event for event in events if event["src"] == "thinker.0" and event.get("uid") == failed["uid"]]
    assert own[-1] == failed
    assert [event["kind"] for event in events].count("request_failed") == 1


def test_r04_each_failure_is_one_line_and_the_other_requests_go_on(tmp_path):
    faults = [fault(stage, kind) for stage in STAGES for kind in ("raise", "oom")]
    plain = [{"id": f"plain-{n}", "prompt": WORDS} for n in range(4)]
    with leaves_nothing():
        ended = batch(tmp_path, [*plain[:2], *faults, *plain[2:]], "recipe=synthetic", "--out", "run")
    assert ended.code == 1
    for number, line in enumerate(faults, start=3):
        stage, _, kind = line["id"].partition("-")
        error = "RuntimeError" if kind == "raise" else "MemoryError"
        said = f"failed: batch.jsonl:{number}: request {line['id']} failed in stage {stage}: {error}: "
        assert ended.err.count(said) == 1
        result = ended.results[line["id"]]
        assert (result["status"], result["error"]["stage"], result["error"]["fault"]) == ("failed", stage, "server")
    assert "6 of 10 requests failed\n" in ended.err
    assert [ended.results[line["id"]]["status"] for line in plain] == ["finished"] * 4
    assert {ended.text(line["id"]) for line in plain} == {WORDS}
    check_trace(ended.run)


def test_r04_a_process_that_dies_takes_only_its_own_requests(tmp_path):
    text = [{"id": f"text-{n}", "prompt": WORDS, "modalities": ["text"]} for n in range(4)]
    with leaves_nothing():
        words = ("recipe=synthetic", "deploy.stages.talker.restarts=0", "--out", "run")
        ended = batch(tmp_path, [fault("talker", "exit"), *text], *words, limit_s=60)
    assert ended.code == 1
    assert ended.err.count("stage process talker.0 is dead: exit code 3") == 1
    assert "request talker-exit failed in stage talker: ProcessDied: talker.0: exit code 3" in ended.err
    assert [ended.results[line["id"]]["status"] for line in text] == ["finished"] * 4
    check_trace(ended.run)


def test_r04_a_stage_that_hangs_ends_with_the_requests_own_limit(tmp_path):
    hang = {**fault("code2wav", "hang", at=0), "timeout_s": 0.5}
    with leaves_nothing():
        words = ("recipe=synthetic", "deploy.drain_timeout_s=0.5", "--out", "run")
        ended = batch(tmp_path, [hang, {"id": "text", "prompt": WORDS, "modalities": ["text"]}], *words, limit_s=60)
    assert ended.code == 1
    assert ended.results["text"]["status"] == "finished"
    assert ended.results["code2wav-hang"]["status"] == "failed"
    assert "timeout_s" in ended.results["code2wav-hang"]["error"]["message"]
    check_trace(ended.run)


def test_r93_the_trace_of_a_killed_run_is_whole_up_to_its_last_moment(tmp_path):
    words = ("recipe=synthetic", "synthetic.delay_ms.talker=20", "synthetic.frames=1000", "--out", "run")
    with leaves_nothing():
        process = start("run", *words, "--prompt", WORDS, cwd=tmp_path)
        last = wait_for_event(tmp_path / "run/trace.jsonl", "step_done", src="talker.0", index=2)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        checked = omni("trace", "check", "run", cwd=tmp_path)
        shown = omni("trace", "show", "run", "--json", cwd=tmp_path)
        omni("doctor", "--clean", cwd=tmp_path)  # nobody was left to remove the rings
    whole = (tmp_path / "run/trace.jsonl").read_bytes().split(b"\n")[:-1]  # only what follows the last one may be torn
    events = [json.loads(line) for line in whole]
    assert last in events
    assert checked.code == 1
    assert "truncated at " in checked.out
    (request,) = json.loads(shown.out)["requests"]
    stages = {stage["stage"]: stage["status"] for stage in request["stages"]}
    assert (stages["thinker"], stages["talker"]) == ("finished", "open")


def test_r93_no_event_of_a_stage_is_earlier_than_what_caused_it(tmp_path):
    ended = batch(tmp_path, [{"id": f"{n}", "prompt": WORDS} for n in range(8)], "recipe=synthetic")
    submitted, put = {}, {}
    causes = 0
    for event in read_events(ended.run / "trace.jsonl"):
        stage = event["src"].partition(".")[0]
        match event["kind"]:
            case "stage_submitted":
                submitted[event["stage"], event["uid"]] = event["t"]
            case "scheduled" | "input_ready":
                assert event["t"] >= submitted[stage, event["uid"]]
                causes += 1
            case "message_put":
                put[event["uid"], stage, event["message"]["consumer"], event["message"]["seq"]] = event["t"]
            case "message_got":
                assert event["t"] >= put[event["uid"], event["producer"].partition(".")[0], stage, event["seq"]]
                causes += 1
    assert causes >= 8 * 3 * 2
