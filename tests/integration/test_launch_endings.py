"""However the parent of stage processes ends, by a signal at any moment or killed, nothing of the run remains."""

import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_cli.launch.rings import stale_segments
from stages.connectors.ring import SHM_DIR

ROOT = Path(__file__).parents[2]
SOON_MS = 60_000  # of a parent that waits for ever otherwise


class Parent:
    """A run of `launch_parent.py` in a process group of its own."""

    def __init__(self, mode: str) -> None:
        self.run_id = uuid.uuid4().hex[:12]
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.launch_parent", mode, self.run_id],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            cwd=ROOT,
        )
        self.lines: list[str] = []
        self.stages: list[int] = []  # a descriptor a stage process, readable when it has ended

    def until(self, line: str, times: int = 1) -> None:
        """Reads what it says up to `line`, a beginning, for the n-th time. Keeps hold of its stages."""
        assert self.popen.stdout is not None
        while times:
            said = self.popen.stdout.readline().strip()
            assert said, f"ended before {line!r}: {self.lines} {self.popen.communicate()[1]}"
            self.lines.append(said)
            if said.startswith("pid "):
                self.stages.append(os.pidfd_open(int(said.split()[1])))
            times -= said.startswith(line)

    def end(self) -> int:
        rest, errors = self.popen.communicate(timeout=SOON_MS / 1000)
        self.lines += rest.splitlines()
        assert "Traceback" not in errors, errors
        return self.popen.returncode

    def living_stages(self) -> int:
        """How many are there still, after waiting for their end."""
        return sum(not select.select([stage], [], [], SOON_MS / 1000)[0] for stage in self.stages)

    def segments(self) -> list[str]:
        return [name for name in os.listdir(SHM_DIR) if self.run_id in name]

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.communicate()
        for stage in self.stages:
            os.close(stage)


@pytest.fixture
def parents() -> Iterator[list[Parent]]:
    started: list[Parent] = []
    yield started
    for parent in started:
        parent.close()
        assert parent.segments() == []


def start(parents: list[Parent], mode: str) -> Parent:
    parents.append(Parent(mode))
    return parents[-1]


def test_a_killed_parent_leaves_no_stage_and_only_its_own_rings_are_stale(parents: list[Parent]) -> None:
    killed, alive = start(parents, "hold"), start(parents, "hold")
    for parent in parents:
        parent.until("ready")
        assert len(parent.segments()) == 4
    killed.popen.kill()
    assert killed.living_stages() == 0
    killed.popen.wait()
    assert sorted(killed.segments()) == [name for name in stale_segments() if killed.run_id in name]
    stale_segments(remove=True)
    assert killed.segments() == []
    assert len(alive.segments()) == 4
    alive.popen.terminate()
    assert alive.end() == 143
    assert alive.segments() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("mode", ["hold", "loading"])
def test_a_signal_ends_the_run_with_its_code(parents: list[Parent], mode: str, number: signal.Signals) -> None:
    parent = start(parents, mode)
    if mode == "hold":
        parent.until("ready")
    else:
        parent.until("pid", times=3)
    parent.popen.send_signal(number)
    assert parent.end() == 128 + number
    assert parent.living_stages() == 0
    assert parent.segments() == []
    expected = ["dead exit code 0"] * 3 if mode == "hold" else ["dead killed by SIGKILL"] * 3
    assert [line for line in parent.lines if line.startswith("dead")] == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_is_the_parents_to_handle(parents: list[Parent], number: signal.Signals) -> None:
    parent = start(parents, "hold")
    parent.until("ready")
    os.killpg(parent.popen.pid, number)
    assert parent.end() == 128 + number
    assert parent.lines[-4:] == ["stopping", *["dead exit code 0"] * 3]


def test_a_second_signal_does_not_wait_for_the_drain(parents: list[Parent]) -> None:
    parent = start(parents, "stubborn")
    parent.until("ready")
    parent.popen.terminate()
    parent.until("stopping")
    parent.popen.send_signal(signal.SIGINT)
    assert parent.end() == 143
    assert parent.living_stages() == 0
    assert parent.segments() == []
    assert "dead killed by SIGKILL" in parent.lines


def test_a_second_signal_ends_even_a_parent_that_hangs(parents: list[Parent]) -> None:
    parent = start(parents, "hanging")
    parent.until("ready")
    parent.popen.send_signal(signal.SIGINT)
    parent.until("stopping")
    parent.popen.send_signal(signal.SIGINT)
    assert parent.end() == 130
    assert parent.living_stages() == 0
    assert parent.segments() == []
