"""Runs `omni` as a user does, in a process of its own, and looks at what it leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

ROOT = Path(__file__).parents[2]
SHM = Path("/dev/shm")


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

    def audio(self, request: str = "request", name: str = "audio.wav") -> tuple[np.ndarray, int]:
        return soundfile.read(self.run / request / name, dtype="float32")


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_")}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120", **extra}


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


def start(*words: str, cwd: Path, **popen: object) -> subprocess.Popen:
    """`omni WORDS` in the background, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "omni_cli", *words],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **popen,
    )


def wait_for_event(trace: Path, kind: str, limit_s: float = 60, **fields: object) -> dict:
    """The first event of that kind in a growing trace, with all the fields given."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if trace.exists():
            for line in trace.read_text(encoding="utf-8").splitlines():
                if f'"{kind}"' in line and line.endswith("}"):
                    event = json.loads(line)
                    if event["kind"] == kind and all(event.get(k) == v for k, v in fields.items()):
                        return event
        time.sleep(0.01)  # a file has no event to wait on
    raise AssertionError(f"no {kind} {fields} in {trace}")


def stage_pids() -> set[int]:
    """Processes called `omni:...`."""
    found = set()
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().startswith("omni:"):
                found.add(int(comm.parent.name))
        except OSError:
            continue
    return found


def segments() -> set[str]:
    return {path.name for path in SHM.iterdir()}


@contextmanager
def leaves_nothing() -> Iterator[None]:
    """Inside, whatever is started ends without leaving a process, a segment or a semaphore."""
    before = segments(), stage_pids()
    yield
    assert segments() - before[0] == set()
    assert stage_pids() - before[1] == set()


def check_trace(run: Path, cwd: Path) -> None:
    """Every trace of the run is clean."""
    for trace in sorted(run.glob("trace*.jsonl")):
        checked = omni("trace", "check", str(trace), cwd=cwd)
        assert checked.code == 0, checked.out + checked.err


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
