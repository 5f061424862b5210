"""Reads a trace line by line, and finds the trace of a run. Judges the form of the lines, never what they say."""

from collections.abc import Iterator
from pathlib import Path

from omni_cli.errors import TraceError
from omni_cli.trace.codec import CodecError, TraceEvent, decode

FILE_NAME = "trace.jsonl"


class TraceReader:
    """Iterates over the events of a file, one line at a time; the line of an event is its place, counted from 1.

    A last line without its newline was torn off when the writer died (or is being written right now): it is left out,
    and `torn` is True after the iteration. Raises TraceError with file and line for anything else that is no event.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False

    def __iter__(self) -> Iterator[TraceEvent]:
        self.torn = False
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if not line.endswith(b"\n"):
                        self.torn = True
                        return
                    yield self._decode(number, line)
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror}") from error

    def _decode(self, number: int, line: bytes) -> TraceEvent:
        try:
            return decode(line)
        except CodecError as error:
            raise TraceError(f"{self.path}:{number}: {error}") from error


def find_trace(run: str, outputs: Path) -> Path:
    """The trace that `run` means: a file, a run's folder, `latest`, or the beginning of a run's name under `outputs`.

    Runs lie two levels deep, `outputs/<recipe>/<run>/trace.jsonl`. Raises TraceError if there is none, or more than
    one run begins so.
    """
    path = Path(run)
    if path.is_file():
        return path
    if (path / FILE_NAME).is_file():
        return path / FILE_NAME
    found = sorted(outputs.glob(f"*/*/{FILE_NAME}"), key=lambda trace: trace.stat().st_mtime_ns)
    if run == "latest" and found:
        return found[-1]
    named = [trace for trace in found if trace.parent.name.startswith(run)]
    exact = [trace for trace in named if trace.parent.name == run]
    if len(exact) == 1 or len(named) == 1:
        return (exact or named)[0]
    if named:
        names = ", ".join(str(trace.parent) for trace in named[-5:])
        raise TraceError(f"{run}: {len(named)} runs begin so, the newest: {names}; give more of the name or the folder")
    if path.is_dir():
        raise TraceError(f"{path}: has no {FILE_NAME}; give a run's folder")
    raise TraceError(f"{run}: no such file, folder or run under {outputs}/; `omni run` prints where it writes")
