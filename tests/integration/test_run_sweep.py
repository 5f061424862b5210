"""`omni run -m`: a job for every combination, each with its status, its log and its own end."""

import json
import os
import select
import signal
import subprocess
from pathlib import Path

from tests.integration.cli import check_trace, kill, leaves_nothing, omni, start, started_here, wait_for, wait_for_event

FAIL = ("synthetic.fail.stage=talker", "synthetic.fail.at=2")


def sweep_of(cwd: Path) -> Path:
    (folder,) = (cwd / "outputs/sweeps/synthetic").iterdir()
    return folder


def jobs(folder: Path) -> list[dict]:
    return json.loads((folder / "sweep.json").read_bytes())


def test_a_job_that_fails_does_not_end_the_sweep(tmp_path):
    with leaves_nothing():
        words = ("recipe=synthetic", "synthetic.frames=1,3", *FAIL)
        ended = omni("run", "-m", *words, "--prompt", "hi, there", cwd=tmp_path)
    assert ended.code == 1
    folder = sweep_of(tmp_path)
    assert [(job["name"], job["status"], job["exit_code"]) for job in jobs(folder)] == [
        ("job-0", "finished", 0),
        ("job-1", "failed", 1),
    ]
    assert ended.err.splitlines() == [
        "job-0 of 2: finished: recipe=synthetic synthetic.frames=1 " + " ".join(FAIL),
        "job-1 of 2: failed: recipe=synthetic synthetic.frames=3 " + " ".join(FAIL),
        f"files: {folder.relative_to(tmp_path)}",
    ]
    for job in jobs(folder):
        check_trace(folder / job["name"])
        assert (folder / job["name"] / "request/text.txt").read_text() == "hi, there"
    assert "raises on purpose at unit 2" in (folder / "job-1.log").read_text()


def test_what_is_wrong_with_any_job_is_found_before_the_first_one_starts(tmp_path):
    for words in (
        ("synthetic.frames=1,-1", "--prompt", "hi"),
        ("synthetic.frames=1,2",),
        ("synthetic.frames=1,2", "--prompt", "hi", "--out", "run"),
        ("synthetic.frames=1,2", "--prompt-file", "-"),
    ):
        ended = omni("run", "-m", "recipe=synthetic", *words, cwd=tmp_path)
        assert ended.code == 2, ended.err
    assert list(tmp_path.iterdir()) == []


def begin(cwd: Path) -> subprocess.Popen:
    """A sweep whose first job would go on for ever, in the middle of its work."""
    words = ("-m", "recipe=synthetic", "synthetic.never_end=true", "synthetic.frames=1,2", "--prompt", "hi")
    process = start("run", *words, cwd=cwd, process_group=0)
    (trace,) = wait_for(lambda: list(cwd.glob("outputs/sweeps/synthetic/*/job-0/trace.jsonl")), "a trace")
    wait_for_event(trace, "step_done", src="talker.0")
    return process


def test_a_ctrl_c_ends_the_job_in_good_order_and_the_sweep_with_it(tmp_path):
    with leaves_nothing():
        process = begin(tmp_path)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    folder = sweep_of(tmp_path)
    assert [job["status"] for job in jobs(folder)] == ["interrupted", "waiting"]
    assert json.loads((folder / "job-0/manifest.json").read_bytes())["status"] == "interrupted"
    check_trace(folder / "job-0")


def test_a_job_does_not_outlive_a_killed_sweep(tmp_path):
    with leaves_nothing():
        before = started_here()
        process = begin(tmp_path)
        job = [os.pidfd_open(pid) for pid in started_here() - before - {process.pid}]
        assert len(job) > 4
        kill(process.pid)
        process.communicate(timeout=60)
        assert all(select.select([descriptor], [], [], 30)[0] for descriptor in job)
    assert json.loads((sweep_of(tmp_path) / "job-0/manifest.json").read_bytes())["status"] == "interrupted"
    check_trace(sweep_of(tmp_path) / "job-0")
