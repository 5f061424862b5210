"""Batches for `llm_generation`: each row is one forward call over the input units that have arrived.

Requests take turns in a queue. When every input has ended and all units have run, one row without units lets the runner
finish. A row that did nothing is not offered again before its input has grown.
"""

from collections.abc import Mapping

from stages.schedulers.base import Row, SchedulerOutput
from stages.schedulers.streams import NO_LOOKAHEAD, UNLIMITED, Entry, StreamScheduler, take


class GenerationScheduler(StreamScheduler):
    """Up to `max_batch` rows a step, of at most `max_units` units each (None: all that are there)."""

    def __init__(
        self, max_batch: int, max_units: int | None = None, *, lookahead: Mapping[str, int] = NO_LOOKAHEAD
    ) -> None:
        super().__init__(max_batch, lookahead)
        if max_units is not None and max_units < 1:
            raise ValueError(f"max_units must be at least 1, got {max_units}")
        self._max_units = max_units or UNLIMITED
        self._queue: dict[int, Entry] = {}  # runnable, in turn
        self._grown: set[int] = set()  # in flight, and more input has come since

    def schedule(self, credits: Mapping[str, int], held: frozenset[int]) -> SchedulerOutput | None:
        left = dict(credits)
        chosen: list[Entry] = []
        for entry in self._queue.values():
            if len(chosen) == self._max_batch:
                break
            if entry.uid not in held and take(entry.consumers, left):
                chosen.append(entry)
        if not chosen:
            return None
        for entry in chosen:
            del self._queue[entry.uid]
            entry.in_flight = True
        return SchedulerOutput(
            rows=tuple(
                Row(
                    uid=e.uid,
                    phase="forward",
                    position=e.position,
                    units=max(min(_end(e) - e.position, self._max_units), 0),
                )
                for e in chosen
            )
        )

    def _runnable(self, entry: Entry, first: bool) -> None:
        if entry.in_flight:
            self._grown.add(entry.uid)
        elif entry.position < entry.limit:
            self._queue.setdefault(entry.uid, entry)

    def _advanced(self, entry: Entry, units: int) -> None:
        grown = entry.uid in self._grown
        self._grown.discard(entry.uid)
        if (units or grown) and entry.position < entry.limit:
            self._queue[entry.uid] = entry

    def _forget(self, uid: int) -> None:
        self._queue.pop(uid, None)
        self._grown.discard(uid)


def _end(entry: Entry) -> int:
    """How far the input reaches: that of the longest stream once all have ended."""
    if entry.limit < UNLIMITED:
        return entry.limit
    return max((stream.units for stream in entry.streams.values()), default=0)
