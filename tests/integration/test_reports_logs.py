"""Reports about what is said and where: stages' log lines, any locale, streams that are closed, full or left."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.cli import check_trace, environment, leaves_nothing, omni, started_here, wait_for

HELLO = ("run", "recipe=synthetic", "--prompt", "hello there")
STAGES = ("thinker.0", "talker.0", "code2wav.0")
C_LOCALE = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_r86_quiet_hides_it_from_the_screen_and_keeps_it_in_the_log(tmp_path):
    ended = omni(*HELLO, "-q", "--out", "run", cwd=tmp_path)
    assert (ended.code, ended.out, ended.err) == (0, "hello there\n", "")
    log = (tmp_path / "run/run.log").read_text()
    assert [log.count(f"omni.stage.{stage}: loaded: ") for stage in STAGES] == [1, 1, 1]


def test_r86_every_job_of_a_sweep_has_its_own_log(tmp_path):
    with leaves_nothing():
        ended = omni(*HELLO[:2], "-m", "synthetic.frames=1,2", *HELLO[2:], cwd=tmp_path)
    assert ended.code == 0, ended.err
    logs = sorted(ended.run.rglob("run.log"))
    assert len(logs) == 2
    for log in logs:
        assert [log.read_text().count(f"omni.stage.{stage}: loaded: ") for stage in STAGES] == [1, 1, 1]
        check_trace(log.parent)


def test_r87_a_locale_without_utf8_changes_nothing(tmp_path):
    folder = tmp_path / "资料"
    folder.mkdir()
    (folder / "配方.yaml").write_bytes("# 注释：两帧\ndefaults: [synthetic]\nsynthetic: {frames: 2}\n".encode())
    text = "李明说：“你好”🙂 é"
    words = ("run", "recipe=资料/配方.yaml", "--prompt", text, "--out", "资料/输出")
    ended = omni(*words, cwd=tmp_path, env=environment(**C_LOCALE))
    assert ended.code == 0, ended.err
    assert ended.out == f"{text}\n"  # decoded as UTF-8 by `omni`
    assert ended.text() == text
    assert ended.run == folder / "输出"


# How the shell starts it, the exit code, and what stderr then says at least.
STREAMS = {
    "no stdout": ("{} >&-", 0, "files: run"),
    "no stream at all": ("{} <&- >&- 2>&-", 0, ""),
    "a full stdout": (
        "{} >/dev/full",
        1,
        "stdout: cannot be written: No space left on device; the text is in the run's",
    ),
    "a full stderr": ("{} 2>/dev/full", 0, ""),
    "stderr that nobody reads": ("{} 2>&1 >shown | true; code=${{PIPESTATUS[0]}}; cat shown; exit $code", 0, ""),
}


HELLO_IN_SHELL = f"{sys.executable} -m omni_cli run recipe=synthetic --prompt 'hello there'"


def in_bash(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, env=environment(), capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture(scope="module")
def shells(tmp_path_factory) -> dict[str, tuple[Path, subprocess.CompletedProcess[str]]]:
    """All of them at once: runs do not get in each other's way either."""
    folders = {name: tmp_path_factory.mktemp("streams") for name in STREAMS}
    with leaves_nothing(), ThreadPoolExecutor(len(STREAMS)) as threads:
        commands = [line.format(f"{HELLO_IN_SHELL} --out run") for line, _, _ in STREAMS.values()]
        done = threads.map(in_bash, commands, folders.values())
    return {name: (folders[name], ended) for name, ended in zip(STREAMS, done, strict=True)}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_are_only_shown_to_and_no_run_depends_on_them(shells, name):
    _, code, said = STREAMS[name]
    folder, done = shells[name]
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if name in ("a full stderr", "stderr that nobody reads"):
        assert done.stdout == "hello there\n"
    assert (folder / "run/request/text.txt").read_text() == "hello there"
    assert (folder / "run/request/audio.wav").stat().st_size > 1000
    assert (folder / "run/manifest.json").exists()
    check_trace(folder / "run")


def test_a_prompt_from_a_stdin_that_is_closed_is_refused(tmp_path):
    done = in_bash(f"{sys.executable} -m omni_cli run recipe=synthetic --prompt-file - <&-", tmp_path)
    assert (done.returncode, done.stderr) == (2, "omni: stdin: is empty (0 bytes)\n")


def test_a_plan_that_cannot_be_written_is_a_failure_and_a_refusal_stays_one(tmp_path):
    plan = f"{sys.executable} -m omni_cli plan recipe=synthetic"
    done = in_bash(f"{plan} request.sed=1 >/dev/full", tmp_path)
    assert (done.returncode, "request.seed" in done.stderr) == (2, True)
    done = in_bash(f"{plan} >/dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (1, "omni: stdout: cannot be written: No space left on device\n")


def test_a_terminal_shows_lines_of_the_log_whole(tmp_path):
    """Progress is redrawn in place; what the log says meanwhile has lines of its own."""
    (tmp_path / "batch.jsonl").write_text('{"prompt": "a b"}\n' * 3)
    before = started_here()
    master, slave = os.openpty()
    words = ("run", "recipe=synthetic", "synthetic.init_delay_s.talker=0.6", "synthetic.delay_ms.thinker=150")
    process = subprocess.Popen(
        [sys.executable, "-m", "omni_cli", *words, "--input", "batch.jsonl"],
        cwd=tmp_path,
        env=environment(),
        stderr=slave,
    )
    os.close(slave)
    data = b""
    try:
        while chunk := os.read(master, 65536):
            data += chunk
    except OSError:  # the other end of a terminal has been closed
        pass
    os.close(master)
    assert process.wait(60) == 0
    screen = [line.rpartition("\x1b[2K")[2].rpartition("\r")[2] for line in data.decode().split("\r\n")]
    for stage in STAGES:
        assert any(line.startswith(f"{stage} is ready after ") for line in screen), screen
    assert any(line.startswith("3/3 requests | ") for line in screen)
    wait_for(lambda: started_here() <= before, "the end of every process", 3)
