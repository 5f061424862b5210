"""`omni run --input`: bad lines among good ones, progress, requests that overlap, runs that overlap."""

import json
import os
import pty
import re
import termios

from tests.integration.cli import (
    batch,
    check_trace,
    judged,
    leaves_nothing,
    read_events,
    refused,
    start,
)

WORDS = "one two three four five six"
FAIL = {"stage": "talker", "at": 2}


def write(path, lines) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def test_bad_lines_fail_alone_and_the_summary_says_which_and_why(tmp_path):
    lines = [
        {"id": "good", "prompt": WORDS},
        "no json",
        {"id": "odd", "prompt": WORDS, "modalites": ["text"]},
        {"id": "good", "prompt": "the same name"},
        {"id": "gone", "prompt": WORDS, "images": ["gone.png"]},
        {"id": "voice", "prompt": WORDS, "voice": "nobody"},
        {"id": "fails", "prompt": WORDS, "synthetic": {"fail": FAIL}},
        {"id": "late", "prompt": WORDS, "timeout_s": 0.5, "synthetic": {"never_end": True}},
        "",
        {"id": "other", "prompt": WORDS, "modalities": ["text"]},
    ]
    with leaves_nothing():
        ended = batch(tmp_path, lines, "recipe=synthetic")
    assert ended.code == 1
    said = {
        int(number): text for number, text in re.findall(r"^failed: batch.jsonl:(\d+): (.*)$", ended.err, re.MULTILINE)
    }
    assert said.keys() == {2, 3, 4, 5, 6, 7, 8}
    assert said[2].startswith("is not JSON")
    assert "modalities" in said[3]
    assert said[4] == "id 'good' stands on line 1 already"
    assert str(tmp_path / "gone.png") in said[5]
    assert "voices" in said[6]
    assert said[7].startswith("request fails failed in stage talker: RuntimeError")
    assert "timeout_s=0.5" in said[8]
    assert "\n7 of 9 requests failed\n" in ended.err

    results = ended.results
    assert {name for name, result in results.items() if result["status"] == "finished"} == {"good", "other"}
    faults = {name: result["error"]["fault"] for name, result in results.items() if "error" in result}
    assert faults.pop("fails") == faults.pop("late") == "server"
    assert set(faults.values()) == {"client"}
    admitted = [event["request_id"] for event in ended.events if event["kind"] == "request_admitted"]
    assert sorted(admitted) == ["fails", "good", "late", "other"]
    check_trace(ended.run)
    assert ended.out == ""
    (progress,) = [line for line in ended.err.splitlines() if " requests, " in line and " | " in line]
    assert progress == "9/9 requests, 7 failed | thinker 4 done | talker 3 done | code2wav 1 done"


def test_only_a_file_without_a_valid_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "absent.jsonl") in refused("recipe=synthetic", "--input", "absent.jsonl", cwd=tmp_path)
    write(tmp_path / "bad.jsonl", [{"prompt": "a", "sed": 1}, {"id": "b"}])
    said = judged(input="bad.jsonl")
    assert said.startswith("bad.jsonl: no line is a valid request\n  bad.jsonl:1: sed: unknown key")
    assert "bad.jsonl:2: prompt: is empty" in said
    write(tmp_path / "voices.jsonl", [{"prompt": "a", "voice": "nobody"}])  # what only the plan can tell
    assert judged(input="voices.jsonl").startswith("voices.jsonl: no line is a valid request\n  voices.jsonl:1: voice:")
    (tmp_path / "blank.jsonl").write_text("\n \n")
    assert judged(input="blank.jsonl") == "blank.jsonl: holds no request"


def test_progress_is_redrawn_in_place_on_a_terminal(tmp_path):
    write(tmp_path / "batch.jsonl", [{"id": f"{n}", "prompt": WORDS} for n in range(3)])
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 50))
    words = ("recipe=synthetic", "synthetic.delay_ms.talker=40", "synthetic.fail.stage=code2wav", "--out", "run")
    process = start("run", *words, "--input", "batch.jsonl", cwd=tmp_path, stderr=theirs)
    os.close(theirs)
    screen = b""
    while True:
        try:
            screen += os.read(ours, 65536)
        except OSError:  # the terminal of a process that has ended
            break
    os.close(ours)
    process.communicate(timeout=60)
    assert process.returncode == 1
    drawn = re.findall(r"\x1b\[2K([^\r\n]*)\r(?!\n)", screen.decode())
    assert len(drawn) > 2
    assert all(len(line) < 50 for line in drawn)
    assert all(re.match(r"\d/3 requests(, \d failed)? \| thinker ", line) for line in drawn)
    assert "\x1b[2K3/3 requests, 3 failed | thinker 3 done | talker 3 done | code2wav 3 done\r\n" in screen.decode()
    assert screen.decode().endswith("3 of 3 requests failed\r\nfiles: run\r\n")


def test_a_stage_works_on_the_next_request_while_another_has_the_one_before(tmp_path):
    delays = ("synthetic.delay_ms.thinker=50", "synthetic.delay_ms.talker=15")  # two thirds of a second for the others
    lines = [{"id": f"{n}", "prompt": WORDS} for n in range(3)]
    ended = batch(tmp_path, lines, "recipe=synthetic", "deploy.stages.thinker.max_batch=1", *delays)
    steps = {"thinker.0": [], "talker.0": [], "code2wav.0": []}
    for event in ended.events:
        if event["kind"] == "step_done":
            steps[event["src"]].append((event["t"], event["end_ns"], {row["uid"] for row in event["rows"]}))
    overlaps = [
        (said, spoken)
        for start_a, end_a, said in steps["thinker.0"]
        for start_b, end_b, spoken in steps["talker.0"]
        if start_a < end_b and start_b < end_a and max(said) > min(spoken)
    ]
    assert overlaps, "the thinker never worked on a later request than the talker at the same time"
    check_trace(ended.run)


def test_two_runs_at_the_same_time_do_not_meet(tmp_path):
    write(tmp_path / "batch.jsonl", [{"id": f"{n}", "prompt": WORDS} for n in range(3)])
    with leaves_nothing():
        words = ("run", "recipe=synthetic", "synthetic.delay_ms.thinker=20", "--input", "batch.jsonl")
        processes = [start(*words, cwd=tmp_path) for _ in range(2)]
        said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    runs = [tmp_path / re.findall(r"^files: (.+)$", text, re.MULTILINE)[0] for text in said]
    spans = []
    for run in runs:
        check_trace(run)
        events = read_events(run / "trace.jsonl")
        spans.append((events[0]["t"], events[-1]["t"]))
        assert {path.name for path in run.iterdir() if path.is_dir()} == {"0", "1", "2"}
    assert runs[0] != runs[1]
    assert spans[0][0] < spans[1][1]
    assert spans[1][0] < spans[0][1]
