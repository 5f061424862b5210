"""Runs `omni` as a user does, in a process of its own, and looks at what it leaves behind."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import soundfile

from omni_cli.batch.options import RunOptions
from omni_cli.batch.run import judge
from omni_cli.errors import OmniError
from omni_cli.trace.check import Checked
from omni_cli.trace.reader import TraceReader
from omni_cli.trace.recorded_plan import recorded_plan
from omni_cli.trace.replay import Replay
from stages.connectors.ring import SHM_DIR

ROOT = Path(__file__).parents[2]
Found = TypeVar("Found")
TAG = f"started_by_test={secrets.token_hex(8)}"  # in the environment of whatever is started here


@dataclass(frozen=True)
class Ended:
    """A finished `omni`: `wall_s` from start to exit."""

    code: int
    out: str
    err: str
    wall_s: float
    cwd: Path

    @property
    def run(self) -> Path:
        """The run folder that it said it wrote."""
        found = re.findall(r"^files: (.+)$", self.err, re.MULTILINE)
        assert found, self.err
        return self.cwd / found[-1]

    @property
    def results(self) -> dict[str, dict]:
        lines = (self.run / "results.jsonl").read_text(encoding="utf-8").splitlines()
        return {record["request_id"]: record for record in map(json.loads, lines)}

    @property
    def events(self) -> list[dict]:
        return read_events(self.run / "trace.jsonl")

    @property
    def traced_s(self) -> float:
        """From the first event to the last: without what Python itself needs to start and to end."""
        events = self.events
        return (events[-1]["t"] - events[0]["t"]) / 1e9

    def text(self, request: str = "request") -> str:
        return (self.run / request / "text.txt").read_bytes().decode("utf-8")

    def audio(self, request: str = "request", name: str = "audio.wav") -> tuple[np.ndarray, int]:
        return soundfile.read(self.run / request / name, dtype="float32")


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_")}
    kept["OMNI_SHM_DIR"] = SHM_DIR
    tag, _, value = TAG.partition("=")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**kept, tag: value, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120", **extra}


def omni(*words: str, cwd: Path, stdin: bytes = b"", env: dict[str, str] | None = None, limit_s: float = 120) -> Ended:
    """`omni WORDS`; killed, and the test failed, if it has not ended by `limit_s`."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "omni_cli", *words],
        cwd=cwd,
        input=stdin,
        env=env or environment(),
        capture_output=True,
        timeout=limit_s,
        check=False,
    )
    wall_s = time.monotonic() - start
    out, err = done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
    assert "Traceback" not in out + err.partition("--- stage traceback")[0], err
    return Ended(code=done.returncode, out=out, err=err, wall_s=wall_s, cwd=cwd)


def batch(cwd: Path, lines: Iterable[dict | str], *words: str, **options: object) -> Ended:
    """`omni run --input` over these lines, one a request."""
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    (cwd / "batch.jsonl").write_bytes(text.encode("utf-8"))
    return omni("run", *words, "--input", "batch.jsonl", cwd=cwd, **options)


def refused(*words: str, cwd: Path, **options: object) -> str:
    """What `omni run WORDS` says when it refuses them: before it has started or written anything."""
    before = sorted(cwd.iterdir())
    ended = omni("run", *words, cwd=cwd, **options)
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert "starting" not in ended.err
    assert sorted(cwd.iterdir()) == before
    return ended.err


def judged(*words: str, recipe: str = "synthetic", **options: object) -> str:
    """What `omni run` would say to these words and options (fields of `RunOptions`), found in this process."""
    with pytest.raises(OmniError) as caught:
        judge((f"recipe={recipe}", *words), RunOptions(**options))
    assert caught.value.exit_code == 2
    return str(caught.value)


def start(*words: str, cwd: Path, **popen: object) -> subprocess.Popen:
    """`omni WORDS` in the background, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "omni_cli", *words],
        cwd=cwd,
        env=environment(),
        text=True,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen},
    )


def wait_for(look: Callable[[], Found | None], what: str, limit_s: float = 60) -> Found:
    """What `look` finds as soon as it finds something."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.01)  # a file has no event to wait on
    raise AssertionError(f"{what} has not come within {limit_s} s")


def wait_for_event(trace: Path, kind: str, limit_s: float = 60, **fields: object) -> dict:
    """The first event of that kind in a growing trace, with all the fields given."""

    def look() -> dict | None:
        lines = trace.read_text(encoding="utf-8").splitlines() if trace.exists() else []
        for line in lines:
            if f'"{kind}"' in line and line.endswith("}"):
                event = json.loads(line)
                if event["kind"] == kind and all(event.get(k) == v for k, v in fields.items()):
                    return event
        return None

    return wait_for(look, f"{kind} {fields} in {trace}", limit_s)


def read_events(trace: Path) -> list[dict]:
    """All events of a trace; each line is JSON by itself."""
    return [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]


def started_here() -> set[int]:
    """Processes that were started from here and still are there, whoever their parent is by now."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if TAG.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.add(int(process.name))
        except OSError:
            continue
    return found


def semaphores() -> set[str]:
    """Named ones of the whole machine, of which a library may have one for a moment."""
    return {path.name for path in Path("/dev/shm").glob("sem.*")}


@contextmanager
def leaves_nothing() -> Iterator[None]:
    """Inside, whatever is started ends without leaving a process, a segment, a semaphore or a temporary file."""
    before = set(os.listdir(SHM_DIR)), semaphores(), started_here()
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", scratch)
        yield
        assert [name for name in os.listdir(scratch) if not name.startswith("torchinductor_")] == []  # torch's cache
    assert set(os.listdir(SHM_DIR)) - before[0] == set()
    wait_for(lambda: semaphores() <= before[1], "the end of every semaphore", 10)
    wait_for(lambda: started_here() <= before[2], "the end of every process", 3)  # a resource tracker is the last


def check_trace(run: Path) -> None:
    """Every trace of the run is clean, and its events are decided again as they were."""
    traces = sorted(run.glob("trace*.jsonl"))
    assert traces
    for trace in traces:
        checked = Checked(TraceReader(trace))
        divergences = Replay(recorded_plan(trace, None), checked).run()
        assert (checked.findings, divergences) == ([], []), trace


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


_SCRIPT = """#!{python}
import sys
from omni_cli.app import main
if __name__ == "__main__":
    sys.exit(main())
"""


def console_script(folder: Path) -> Path:
    """Writes `omni` into a new folder, in the words that pip writes for `project.scripts`; returns its path."""
    folder.mkdir()
    script = folder / "omni"
    script.write_text(_SCRIPT.format(python=sys.executable), encoding="utf-8")
    script.chmod(0o755)
    return script
