"""Live progress of a batch: per stage how many requests wait, run and are done. A listener; it draws on stderr."""

import sys
from collections import Counter
from collections.abc import Callable
from typing import TextIO

from omni_cli import streams
from omni_cli.runtime.events import (
    Event,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    StageSubmitted,
)
from stages.events import Scheduled, StageCancelled, StageFailed, StageFinished

_ENDS = (StageFinished, StageFailed, StageCancelled)


class Progress:
    """Counts requests by stage and state from the events. `stages` in the order in which they are shown."""

    def __init__(self, stages: tuple[str, ...], total: int) -> None:
        self.total = total
        self.ended: Counter[str] = Counter()
        self._stages = stages
        self._where: dict[tuple[str, int], str] = {}
        self._counts: dict[str, Counter[str]] = {stage: Counter() for stage in stages}

    def __call__(self, source: str, event: Event) -> None:
        stage = source.rpartition(".")[0]
        if isinstance(event, StageSubmitted):
            self._move(event.stage, event.uid, "waiting")
        elif isinstance(event, Scheduled):
            self._move(stage, event.uid, "running")
        elif isinstance(event, _ENDS):
            self._move(stage, event.uid, "done")
        elif isinstance(event, RequestFinished):
            self.ended["finished"] += 1
        elif isinstance(event, RequestFailed):
            self.ended["failed"] += 1
        elif isinstance(event, RequestCancelled):
            self.ended["cancelled"] += 1

    def _move(self, stage: str, uid: int, state: str) -> None:
        counts = self._counts[stage]
        before = self._where.pop((stage, uid), None)
        if before is not None:
            counts[before] -= 1
        counts[state] += 1
        if state != "done":
            self._where[stage, uid] = state

    def line(self) -> str:
        """One line: `12/40 requests, 1 failed | thinker 2 waiting 1 running 12 done | ...`."""
        over = self.ended.total()
        failed = f", {self.ended['failed']} failed" if self.ended["failed"] else ""
        stages = (
            f"{stage} {self._counts[stage]['waiting']} waiting {self._counts[stage]['running']} running "
            f"{self._counts[stage]['done']} done"
            for stage in self._stages
        )
        return " | ".join((f"{over}/{self.total} requests{failed}", *stages))


class ProgressDisplay:
    """Shows a `Progress`: redrawn in place on a terminal, else a plain line now and then, and one at the end.

    `clock` in seconds; it draws at most every `every_s`, always from the caller's thread.
    """

    def __init__(self, progress: Progress, stream: TextIO | None = None, *, clock: Callable[[], float]) -> None:
        self._progress = progress
        self._stream = stream if stream is not None else sys.stderr
        self._terminal = self._stream.isatty()
        self._clock = clock
        self._every_s = 0.2 if self._terminal else 5.0
        self._last_s = clock()

    def __call__(self, source: str, event: Event) -> None:
        self._progress(source, event)
        now = self._clock()
        if now - self._last_s >= self._every_s:
            self._last_s = now
            self._draw("\r\x1b[2K" if self._terminal else "", "" if self._terminal else "\n")

    def close(self) -> None:
        self._draw("\r\x1b[2K" if self._terminal else "", "\n")

    def _draw(self, start: str, end: str) -> None:
        streams.put(self._stream, start + self._progress.line() + end)
