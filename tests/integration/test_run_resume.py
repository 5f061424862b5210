"""`omni run --resume`: only what is missing, whatever ended the run before it."""

import json
import os
import select

from PIL import Image

from omni_cli.launch.rings import stale_segments
from tests.integration.cli import (
    batch,
    check_trace,
    kill,
    leaves_nothing,
    omni,
    read_events,
    start,
    wait_for,
    wait_for_event,
)

WORDS = "one two three four"


def names(trace) -> list[str]:
    return [event["request_id"] for event in read_events(trace) if event["kind"] == "request_admitted"]


def test_what_failed_or_has_changed_is_done_again_and_nothing_else(tmp_path):
    kept, changed = {"id": "kept", "prompt": WORDS}, {"id": "changed", "prompt": WORDS}
    broken = {"id": "broken", "prompt": WORDS, "synthetic": {"fail": {"stage": "talker"}}}
    first = batch(tmp_path, [kept, changed, broken], "recipe=synthetic", "--out", "run")
    assert first.code == 1
    run = tmp_path / "run"
    sound = (run / "kept/audio.wav").stat()
    changed["prompt"] = "another question"
    del broken["synthetic"]
    lines = [kept, changed, broken, {"id": "new", "prompt": WORDS}]

    second = batch(tmp_path, lines, "recipe=synthetic", "--resume", "run")
    assert second.code == 0, second.err
    assert "warning: request changed is not what it was and is done again\n" in second.err
    assert "1 of 4 requests are done already\n" in second.err
    assert sorted(names(run / "trace-2.jsonl")) == ["broken", "changed", "new"]
    assert (run / "kept/audio.wav").stat() == sound
    assert (run / "changed/text.txt").read_text() == "another question"
    manifest = json.loads((run / "manifest.json").read_bytes())
    assert manifest["status"] == "finished"
    assert {request["request_id"] for request in manifest["requests"]} == {"kept", "changed", "broken", "new"}
    check_trace(run)

    with (run / "results.jsonl").open("ab") as results:
        results.write(b'{"request_id": "kept", "status": "fai')  # torn by a kill
    third = batch(tmp_path, lines, "recipe=synthetic", "--resume", "run")
    assert third.code == 0, third.err
    assert third.err == "4 of 4 requests are done already\nfiles: run\n"
    assert not (run / "trace-3.jsonl").exists()
    assert (run / "results.jsonl").read_bytes().endswith(b"}\n")
    assert len((run / "results.jsonl").read_text().splitlines()) == 6

    other = batch(tmp_path, lines, "recipe=synthetic", "deploy.stages.talker.max_batch=3", "--resume", "run")
    assert other.code == 2
    assert f"{run / 'plan.json'}: that run was carried by another plan" in other.err


def test_a_line_that_cannot_be_read_any_more_keeps_its_result(tmp_path):
    prompt = tmp_path / "question.png"
    Image.new("RGB", (2, 2)).save(prompt)
    lines = [{"id": "seen", "images": ["question.png"], "modalities": ["text"]}, {"id": "other", "prompt": WORDS}]
    assert batch(tmp_path, lines, "recipe=synthetic", "--out", "run").code == 0
    answer = (tmp_path / "run/seen/text.txt").read_bytes()
    prompt.unlink()
    again = batch(tmp_path, lines, "recipe=synthetic", "--resume", "run")
    assert "keeps its result" in again.err
    assert (tmp_path / "run/seen/text.txt").read_bytes() == answer


def test_a_killed_run_leaves_no_child_and_is_resumed_by_the_next_one(tmp_path):
    """The trace of the killed one says that it is truncated, and nothing else; its rings go with the next start."""
    lines = [{"id": "short", "prompt": "one"}, *({"id": f"long-{n}", "prompt": WORDS} for n in range(2))]
    slow = ("recipe=synthetic", "synthetic.delay_ms.talker=100")
    (tmp_path / "batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = tmp_path / "run/trace.jsonl"
    with leaves_nothing():
        before = set(stale_segments())
        process = start("run", *slow, "--input", "batch.jsonl", "--out", "run", cwd=tmp_path)
        pids = [wait_for_event(trace, "process_started", process=f"{s}.0")["pid"] for s in ("thinker", "talker")]
        stages = [os.pidfd_open(pid) for pid in pids]
        uid = wait_for_event(trace, "request_admitted", request_id="short")["uid"]
        wait_for_event(trace, "request_finished", uid=uid)
        wait_for(lambda: (tmp_path / "run/results.jsonl").read_bytes(), "the result")  # by another thread
        kill(process.pid)
        process.communicate(timeout=60)
        assert all(select.select([stage], [], [], 30)[0] for stage in stages)
        left = set(stale_segments()) - before
        assert left
        checked = omni("trace", "check", "run", cwd=tmp_path)
        assert (checked.code, len(checked.out.splitlines())) == (1, 1)
        assert ": truncated at " in checked.out
        assert json.loads((tmp_path / "run/manifest.json").read_bytes())["status"] == "running"

        resumed = batch(tmp_path, lines, *slow, "--resume", "run")
    assert resumed.code == 0, resumed.err
    assert left & set(stale_segments()) == set()
    assert sorted(names(tmp_path / "run/trace-2.jsonl")) == ["long-0", "long-1"]
    assert [resumed.text(line["id"]) for line in lines] == ["one", WORDS, WORDS]
    assert omni("trace", "check", str(tmp_path / "run/trace-2.jsonl"), cwd=tmp_path).code == 0
