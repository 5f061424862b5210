"""Batches for `llm_generation`: each row is one forward call over the input units that have arrived.

Requests take turns in a queue. When every input has ended and all units have run, one row without units lets the runner
finish. A row that did nothing is not offered again before its input has grown. With chunks, a request is in the queue
when its next chunk is complete, and the rows of a step have one size.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from stages.schedulers.base import Row, RowProgress, SchedulerOutput
from stages.schedulers.chunks import Chunk, Chunking, joint_units
from stages.schedulers.streams import NO_LOOKAHEAD, UNLIMITED, Entry, StreamScheduler, take


@dataclass(frozen=True, slots=True)
class _Offer:
    entry: Entry
    chunk: Chunk


class GenerationScheduler(StreamScheduler):
    """Up to `max_batch` rows a step, of at most `max_units` units each (None: all that are there).

    With `chunks`, first chunks go first, since somebody waits for the first sound; but where others wait too, every
    second step is theirs. A step computes at most `max_batch` usual chunks or one of the largest.
    """

    def __init__(
        self,
        max_batch: int,
        max_units: int | None = None,
        *,
        chunks: Chunking | None = None,
        lookahead: Mapping[str, int] = NO_LOOKAHEAD,
    ) -> None:
        super().__init__(max_batch, lookahead)
        if max_units is not None and max_units < 1:
            raise ValueError(f"max_units must be at least 1, got {max_units}")
        self._max_units = max_units or UNLIMITED
        self._chunks = chunks
        self._queue: dict[int, Entry] = {}  # runnable, in turn
        self._grown: set[int] = set()  # in flight, and more input has come since
        self._passed_over = False  # the last step went to first chunks while others waited

    def schedule(self, credits: Mapping[str, int], held: frozenset[int]) -> SchedulerOutput | None:
        offers = [
            _Offer(entry, chunk)
            for entry in self._queue.values()
            if entry.uid not in held and take(entry.consumers, dict(credits)) and (chunk := self._chunk(entry))
        ]
        if not offers:
            return None
        leader = self._leader(offers)
        left = dict(credits)
        rows: list[Row] = []
        for offer in (leader, *(offer for offer in offers if offer is not leader)):
            if len(rows) == self._most_rows(leader.chunk):
                break
            units = joint_units(offer.chunk, leader.chunk) if self._chunks else offer.chunk.units
            if units is not None and take(offer.entry.consumers, left):
                rows.append(self._row(offer.entry, units))
        return SchedulerOutput(rows=tuple(rows))

    def _chunk(self, entry: Entry) -> Chunk | None:
        """What the entry could run now; None if it has to wait for more input."""
        available = _end(entry) - entry.position
        if self._chunks:
            return self._chunks.chunk(entry.position, available, ended=entry.limit == UNLIMITED)
        units = max(min(available, self._max_units), 0)
        return Chunk(begins=False, size=units, units=units)

    def _leader(self, offers: list[_Offer]) -> _Offer:
        """Whose size the step has: the first in turn of those whose step it is."""
        first = next((offer for offer in offers if offer.chunk.begins), None)
        later = next((offer for offer in offers if not offer.chunk.begins), None)
        if first is None or (later is not None and self._passed_over):
            self._passed_over = False
            return later or offers[0]
        self._passed_over = later is not None
        return first

    def _most_rows(self, chunk: Chunk) -> int:
        """Bounds a step's memory by what `max_batch` usual chunks take."""
        if self._chunks is None:
            return self._max_batch
        budget = max(self._max_batch * self._chunks.later_sizes[0], self._chunks.most)
        return min(self._max_batch, budget // chunk.size)

    def _row(self, entry: Entry, units: int) -> Row:
        del self._queue[entry.uid]
        entry.in_flight = True
        return Row(uid=entry.uid, phase="forward", position=entry.position, units=units)

    def gauges(self) -> tuple[tuple[str, int], ...]:
        return (*super().gauges(), ("runnable", len(self._queue)))

    def _runnable(self, entry: Entry, first: bool) -> None:
        if entry.in_flight:
            self._grown.add(entry.uid)
        else:
            self._enqueue(entry)

    def _advanced(self, entry: Entry, progress: RowProgress) -> None:
        grown = entry.uid in self._grown
        self._grown.discard(entry.uid)
        if progress.units or grown:
            self._enqueue(entry)

    def _enqueue(self, entry: Entry) -> None:
        """Keeps its turn if it has one."""
        if entry.position < entry.limit and self._chunk(entry) is not None:
            self._queue.setdefault(entry.uid, entry)

    def _forget(self, uid: int) -> None:
        self._queue.pop(uid, None)
        self._grown.discard(uid)


def _end(entry: Entry) -> int:
    """How far the input reaches: that of the longest stream once all have ended."""
    if entry.limit < UNLIMITED:
        return entry.limit
    return max((stream.units for stream in entry.streams.values()), default=0)
