"""Continuous batching for `llm_ar`: a request keeps its place in the batch from its prefill to its end.

Places are given in the order in which requests became ready. A row at position p needs more than p units of every
incremental input, or that input's end: who is ahead of its producer waits, and guesses nothing.
"""

from collections.abc import Mapping

from stages.schedulers.base import Row, SchedulerOutput
from stages.schedulers.streams import NO_LOOKAHEAD, Entry, StreamScheduler, take


class ARScheduler(StreamScheduler):
    """One row is one unit; a step mixes prefill and decode rows of up to `max_batch` requests."""

    def __init__(self, max_batch: int, *, lookahead: Mapping[str, int] = NO_LOOKAHEAD) -> None:
        super().__init__(max_batch, lookahead)
        self._waiting: dict[int, Entry] = {}  # ready, without a place
        self._running: dict[int, Entry] = {}  # with a place; least recently run first

    def schedule(self, credits: Mapping[str, int], held: frozenset[int]) -> SchedulerOutput | None:
        self._admit()
        left = dict(credits)
        chosen = []
        for entry in self._running.values():
            may_run = entry.position < entry.limit and not entry.in_flight and entry.uid not in held
            if may_run and take(entry.consumers, left):
                chosen.append(entry)
        for entry in chosen:  # to the back: who found no credit goes first next time
            self._running[entry.uid] = self._running.pop(entry.uid)
        if not chosen:
            return None
        for entry in chosen:
            entry.in_flight = True
        return SchedulerOutput(rows=tuple(_row(entry) for entry in chosen))

    def _admit(self) -> None:
        """Gives free places to those who wait, whether or not they have credit now: a place is a turn at it."""
        while self._waiting and len(self._running) < self._max_batch:
            uid = next(iter(self._waiting))
            self._running[uid] = self._waiting.pop(uid)

    def _runnable(self, entry: Entry, first: bool) -> None:
        if first:
            self._waiting[entry.uid] = entry

    def _advanced(self, entry: Entry, units: int) -> None:
        pass  # keeps its place

    def _forget(self, uid: int) -> None:
        self._waiting.pop(uid, None)
        self._running.pop(uid, None)


def _row(entry: Entry) -> Row:
    if not entry.position:
        return Row(uid=entry.uid, phase="prefill", position=0, units=1, tokens=entry.prompt)
    start = entry.prompt + entry.position - 1
    return Row(uid=entry.uid, phase="decode", position=entry.position, units=1, start=start, tokens=1)
