"""Reads a trace line by line, and finds the trace of a run. Judges the form of the lines, never what they say."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from omni_cli.errors import TraceError
from omni_cli.trace.codec import CodecError, TraceEvent, decode

PATTERN = "trace*.jsonl"  # a run that was resumed has more than one


class TraceReader:
    """Iterates over the events of a file, one line at a time; the line of an event is its place, counted from 1.

    A last line without its newline was torn off when the writer died (or is being written right now): it is left out,
    and `torn` is True after the iteration. Raises TraceError with file and line for anything else that is no event.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False

    def __iter__(self) -> Iterator[TraceEvent]:
        self.torn, number = False, 0
        try:
            with self.path.open("rb") as file:
                for line in file:
                    number += 1
                    if not line.endswith(b"\n"):
                        self.torn = True
                        return
                    yield decode(line)
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror}") from error
        except CodecError as error:
            raise TraceError(f"{self.path}:{number}: {error}") from error


def being_written(path: Path) -> bool:
    """Whether the process that writes it lives and has not closed it: then it holds the file's lock."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # reading it says why
        pass
    return False


def find_trace(run: str, outputs: Path) -> Path:
    """The trace that `run` means, of a run that was resumed the newest. Raises TraceError."""
    return find_traces(run, outputs)[-1]


def find_traces(run: str, outputs: Path) -> list[Path]:
    """The traces of the run that is meant, the newest last: there are several in the folder of one that was resumed.

    `run` is a file, a run's folder, `latest`, or the beginning of a run's name under `outputs`.

    Runs lie in `outputs/<recipe>/<run>/`, a recipe's name may have two levels. A name is a run's own, or with the
    recipe before it. Raises TraceError if there is no trace, or more than one run begins so.
    """
    path = Path(run)
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        found = _newest(path.glob(PATTERN))
        if not found:
            raise TraceError(f"{path}: has no {PATTERN}; give the folder of a run")
        return found
    traces = [trace for depth in ("*/*", "*/*/*") for trace in outputs.glob(f"{depth}/{PATTERN}")]
    if run != "latest":
        traces = [t for t in traces if t.parent.name.startswith(run) or _name(t, outputs).startswith(run)]
        traces = [t for t in traces if run in (t.parent.name, _name(t, outputs))] or traces
        if len({trace.parent for trace in traces}) > 1:
            names = ", ".join(_name(trace, outputs) for trace in _newest(traces)[-5:])
            raise TraceError(f"{run}: more than one run begins so, the newest are {names}; give more of the name")
    if not traces:
        raise TraceError(f"{run}: no such file, folder or run under {outputs}/; `omni run` prints where it writes")
    newest = _newest(traces)[-1].parent
    return _newest(trace for trace in traces if trace.parent == newest)


def _newest(traces: Iterable[Path]) -> list[Path]:
    return sorted(traces, key=lambda trace: trace.stat().st_mtime_ns)


def _name(trace: Path, outputs: Path) -> str:
    return trace.parent.relative_to(outputs).as_posix()
