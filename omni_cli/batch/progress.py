"""Live progress of a batch: per stage how many requests wait, run and are done, on stderr."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import TextIO

from omni_cli import streams
from omni_cli.artifacts.records import ResultRecord
from omni_cli.batch.display import Display
from omni_cli.runtime.events import Event, ProcessDead, StageSubmitted
from stages.events import Scheduled, StageCancelled, StageFailed, StageFinished

_ENDS = (StageFinished, StageFailed, StageCancelled)

CLEAR_LINE = "\x1b[2K"


class Progress:
    """Counts requests by stage and state from the events. `stages` in the order in which they are shown."""

    def __init__(self, stages: tuple[str, ...], total: int) -> None:
        self.total = total
        self.ended: Counter[str] = Counter()
        self._where: dict[tuple[str, int], str] = {}  # process, request: waiting or running
        self._counts: dict[str, Counter[str]] = {stage: Counter() for stage in stages}

    def event(self, source: str, event: Event) -> None:
        if isinstance(event, StageSubmitted):
            self._move(event.process, event.uid, "waiting")
        elif isinstance(event, Scheduled):
            self._move(source, event.uid, "running")
        elif isinstance(event, _ENDS):
            self._move(source, event.uid, "done")
        elif isinstance(event, ProcessDead):
            for process, uid in tuple(self._where):
                if process == event.process:
                    self._move(process, uid, "done")

    def _move(self, process: str, uid: int, state: str) -> None:
        counts = self._counts[process.rpartition(".")[0]]
        before = self._where.pop((process, uid), None)
        if before is None and state != "waiting":
            return  # it has left the process: that it is cancelled there says nothing
        if before is not None:
            counts[before] -= 1
        counts[state] += 1
        if state != "done":
            self._where[process, uid] = state

    def line(self) -> str:
        """One line: `12/40 requests, 1 failed | thinker 2 waiting, 1 running, 12 done | ...`; no count of none."""
        failed = f", {self.ended['failed']} failed" if self.ended["failed"] else ""
        stages = (f"{stage} {_said(counts)}" for stage, counts in self._counts.items())
        return " | ".join((f"{self.ended.total()}/{self.total} requests{failed}", *stages))


def _said(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[state]} {state}" for state in ("waiting", "running", "done") if counts[state]) or "idle"


class ProgressDisplay(Display):
    """Shows a `Progress`: redrawn in place on a terminal, else a plain line now and then, and one at the end.

    `clock` in seconds; it draws at most every `every_s`, always from the caller's thread. On a terminal the cursor
    waits at the start of the line, so that a log line takes its place.
    """

    def __init__(self, progress: Progress, stream: TextIO | None = None, *, clock: Callable[[], float]) -> None:
        self._progress = progress
        self._stream = stream if stream is not None else sys.stderr
        self._terminal = self._stream.isatty()
        self._clock = clock
        self._every_s = 0.2 if self._terminal else 5.0
        self._last_s = clock()
        self._last = ""

    def event(self, source: str, event: Event) -> None:
        self._progress.event(source, event)
        now = self._clock()
        if now - self._last_s >= self._every_s:
            self._last_s = now
            self._draw("\r" if self._terminal else "\n")

    def result(self, record: ResultRecord) -> None:
        self._progress.ended[record.status] += 1

    def close(self) -> None:
        self._draw("\n")

    def _draw(self, end: str) -> None:
        line = self._progress.line()
        if self._terminal:
            if end == "\r":
                line = line[: os.get_terminal_size(self._stream.fileno()).columns - 1]
            line = CLEAR_LINE + line
        elif line == self._last:
            return
        self._last = line
        streams.put(self._stream, line + end)
