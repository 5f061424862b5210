"""Reports about the start and the end of a run: who is slow, who dies early, what is started at all, what stays."""

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omni_cli.launch import startup
from stages.models.cache import cache_root
from stages.models.qwen3_omni.tiny import tiny_checkpoint
from tests.integration.cli import (
    Ended,
    check_trace,
    judged,
    leaves_nothing,
    omni,
    read_events,
    refused,
    start,
    wait_for_event,
)
from tests.integration.launch_plans import Heard
from tests.integration.test_launch_synthetic import launcher

SYNTHETIC = ("run", "recipe=synthetic", "--prompt", "one two three")
PROCESSES = ("thinker.0", "talker.0", "code2wav.0")
AT_ONCE = 6  # starts that are waiting at the same time


def ready_events(run: Path) -> list[dict]:
    return [event for event in read_events(run / "trace.jsonl") if event["kind"] == "process_ready"]


@pytest.mark.parametrize(("starts", "delay_s"), [(1, 2), pytest.param(20, 15, marks=pytest.mark.soak)])
def test_r12_every_start_is_ready_whoever_is_slow(tmp_path, starts, delay_s):
    runs = [(slow, tmp_path / f"{slow}-{n}") for n in range(starts) for slow in ("thinker", "code2wav")]
    with leaves_nothing():
        for first in range(0, len(runs), AT_ONCE):
            wave = [
                (
                    slow,
                    out,
                    start(*SYNTHETIC, f"synthetic.init_delay_s.{slow}={delay_s}", "--out", str(out), cwd=tmp_path),
                )
                for slow, out in runs[first : first + AT_ONCE]
            ]
            for slow, out, process in wave:
                text, said = process.communicate(timeout=120)
                assert (process.returncode, text) == (0, "one two three\n"), said
                ready = [line.partition(" is ready after ")[0] for line in said.splitlines() if " is ready " in line]
                assert sorted(ready) == sorted(PROCESSES)
                (loaded,) = [event for event in ready_events(out) if event["src"] == f"{slow}.0"]
                assert float(dict(loaded["facts"])["load_s"]) >= delay_s
                check_trace(out)


def test_r20_r68_r86_a_run_says_what_it_loads_is_ready_then_and_ends_by_itself(tmp_path):
    with leaves_nothing():
        ended = omni(*SYNTHETIC, cwd=tmp_path, limit_s=60)
    assert (ended.code, ended.out) == (0, "one two three\n")
    assert {path.name for path in ended.run.iterdir()} == {
        "manifest.json", "plan.json", "results.jsonl", "run.log", "trace.jsonl", "request",
    }  # fmt: skip
    check_trace(ended.run)
    log = (ended.run / "run.log").read_text()
    for name in PROCESSES:
        assert ended.err.index(f"{name}: loaded: ") < ended.err.index(f"{name} is ready after ")
        assert ended.err.count(f"{name}: loaded: device cpu, dtype float32") == 1
        assert log.count(f" INFO omni.stage.{name}: loaded: device cpu, dtype float32") == 1
    facts = {event["src"]: dict(event["facts"]) for event in ready_events(ended.run)}
    assert all("warm_up_s" in facts[name] for name in PROCESSES)


def test_r20_a_reader_that_leaves_ends_neither_the_run_nor_its_files(tmp_path):
    """`| head -1`: shown is only what is read, written is everything."""
    text = "".join(f"line {n}\n" for n in range(3_000))
    (tmp_path / "prompt.txt").write_text(text + "end\n")
    words = (*SYNTHETIC[:2], "--prompt-file", "prompt.txt", "--out", "run", "synthetic.frames=2")
    with leaves_nothing():
        process = start(*words, cwd=tmp_path)
        assert process.stdout.readline() == "line 0\n"
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(60) == 0, said
        process.stderr.close()
    assert said.splitlines()[-1] == "files: run"
    assert (tmp_path / "run/request/text.txt").read_text() == text + "end"
    assert (tmp_path / "run/request/audio.wav").exists()
    check_trace(tmp_path / "run")


def test_r66_only_what_is_asked_for_is_started(tmp_path):
    ended = omni(*SYNTHETIC, "request.modalities=[text]", cwd=tmp_path)
    assert (ended.code, ended.out) == (0, "one two three\n")
    assert [event["process"] for event in ended.events if event["kind"] == "process_started"] == ["thinker.0"]
    assert [path.name for path in (ended.run / "request").iterdir()] == ["text.txt"]
    said = judged("deploy.outputs=[text]", prompt="a", modalities="text,audio")
    assert said == "modalities: audio is not available in this deployment, which gives text (deploy.outputs)"


SLOW = ("synthetic.init_delay_s.thinker=600", "synthetic.init_delay_s.code2wav=600")
PATIENT = tuple(f"deploy.stages.{stage}.startup_timeout_s=600" for stage in ("thinker", "talker", "code2wav"))
DIES = (*SLOW, *PATIENT, "synthetic.fail.stage=talker", "synthetic.fail.at=-1")
BAD_STARTS = {
    "limit": ("synthetic.init_delay_s.talker=600", "deploy.stages.talker.startup_timeout_s=2"),
    "raise": (*DIES, "synthetic.fail.kind=raise"),
    "exit": (*DIES, "synthetic.fail.kind=exit"),
}


@pytest.fixture(scope="module")
def bad_starts(tmp_path_factory) -> dict[str, Ended]:
    """All at once, since each of them only waits."""
    folders = {name: tmp_path_factory.mktemp(name) for name in BAD_STARTS}
    with leaves_nothing(), ThreadPoolExecutor(len(BAD_STARTS)) as threads:
        runs = {
            name: threads.submit(omni, *SYNTHETIC, *words, "--out", "run", cwd=folders[name])
            for name, words in BAD_STARTS.items()
        }
        return {name: run.result() for name, run in runs.items()}


def test_r67_the_configured_limit_ends_a_start_and_names_itself(bad_starts):
    ended = bad_starts["limit"]
    assert ended.code == 1
    assert 2 < ended.traced_s < 60
    last = ended.err.splitlines()[-1]
    assert last.startswith("omni: talker.0 was not ready after 2 s, the limit of stage 'talker'.")
    assert last.endswith("raise deploy.stages.talker.startup_timeout_s")
    assert last.removeprefix("omni: ") in (ended.run / "run.log").read_text()
    check_trace(ended.run)


def test_r67_a_slow_start_says_whom_it_waits_for(monkeypatch):
    assert startup.PROGRESS_S <= 10
    monkeypatch.setattr(startup, "PROGRESS_S", 0.2)
    lines: list[str] = []
    with launcher(Heard(), lines, "synthetic.init_delay_s.talker=0.7").start() as running:
        running.stop()
        assert running.live_slots == 0
    waiting = [line for line in lines if line.startswith("waiting for ")]
    assert waiting
    assert all("talker.0" in line for line in waiting)
    assert lines.index(waiting[-1]) < [line.partition(" after ")[0] for line in lines].index("talker.0 is ready")


@pytest.mark.soak
def test_r67_in_full(tmp_path):
    slow = "synthetic.init_delay_s.talker=20"
    ended = omni(*SYNTHETIC, slow, "deploy.stages.talker.startup_timeout_s=5", cwd=tmp_path)
    assert (ended.code, 5 <= ended.traced_s < 8) == (1, True)
    ended = omni(*SYNTHETIC, slow, "deploy.stages.talker.startup_timeout_s=60", cwd=tmp_path)
    assert ended.code == 0
    for second in (5, 10, 15):
        assert f"waiting for talker.0: {second} s\n" in ended.err


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("raise", "failed while it was starting: RuntimeError: stage 'talker' raises on purpose while it loads"),
        ("exit", "died while it was starting: exit code 3"),
    ],
)
def test_r68_a_stage_that_dies_while_it_loads_ends_the_start_at_once(bad_starts, kind, cause):
    ended = bad_starts[kind]
    assert ended.code == 1
    assert ended.traced_s < 60
    assert "ready" not in ended.err
    assert ended.err.count(f"omni: talker.0 {cause}\n") == 1
    assert ended.err.count("--- stage traceback of talker.0\n") == (kind == "raise")
    log = (ended.run / "run.log").read_text()
    assert log.count(f"talker.0 {cause}\n") == 1
    check_trace(ended.run)


# When the signal comes: while a stage loads, in the middle of a step, while another stage waits for it.
MOMENTS = {
    "start": (("synthetic.init_delay_s.talker=600",), {"kind": "process_ready", "src": "thinker.0"}),
    "thinker": (("synthetic.delay_ms.thinker=300",), {"kind": "step_done", "src": "thinker.0"}),
    "talker": (("synthetic.delay_ms.talker=300", "synthetic.frames=400"), {"kind": "step_done", "src": "talker.0"}),
}


@pytest.mark.parametrize("rounds", [1, pytest.param(7, marks=pytest.mark.soak)])
def test_r16_an_interrupted_run_leaves_nothing(tmp_path, rounds):
    def end(count: int) -> None:
        words, moment = list(MOMENTS.values())[count % len(MOMENTS)]
        number = (signal.SIGINT, signal.SIGTERM)[count % 2]
        out = tmp_path / f"{count}"
        process = start(*SYNTHETIC, *words, "deploy.drain_timeout_s=1", "--out", str(out), cwd=tmp_path)
        wait_for_event(out / "trace.jsonl", **moment)
        os.kill(process.pid, number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 128 + number, said
        assert "Traceback" not in said
        check_trace(out)

    with leaves_nothing(), ThreadPoolExecutor(len(MOMENTS)) as threads:
        list(threads.map(end, range(len(MOMENTS) * rounds)))


def test_r73_weights_that_are_missing_or_partial_are_named_before_anything_is_started(tmp_path):
    run = ("recipe=qwen3_omni", "--prompt", "a")
    (tmp_path / "bare").mkdir()
    said = refused(*run, "model.path=bare", cwd=tmp_path)
    assert f"{tmp_path / 'bare/config.json'}: no such file" in said
    assert f"{tmp_path / 'bare/model.safetensors'}: no such file" in said


def test_r73_a_truncated_shard_and_a_hub_name_are_named(tmp_path, monkeypatch):
    folder = shutil.copytree(tiny_checkpoint(cache_root(os.environ)), tmp_path / "cut")
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    said = judged(f"model.path={folder}", recipe="qwen3_omni", prompt="a")
    assert f"{weights}: truncated, " in said
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    said = judged("model.path=Qwen/Qwen3-Omni-30B-A3B-Instruct", recipe="qwen3_omni", prompt="a")
    assert said.endswith(f"{tmp_path / 'Qwen/Qwen3-Omni-30B-A3B-Instruct'}: no such folder")
