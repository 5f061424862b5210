"""What all schedulers share: which requests are held, how far their input streams reach, what a row may take.

Subclasses own the order in which requests run. Nothing here knows time, tensors or where data lies.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from stages.config import EdgeMode
from stages.messages import StageRequest
from stages.schedulers.base import RowProgress

UNLIMITED = sys.maxsize
NO_LOOKAHEAD: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class Stream:
    """One input stream of a request, as far as it has arrived."""

    mode: EdgeMode
    lookahead: int = 0
    units: int = 0
    eos: bool = False


@dataclass(slots=True)
class Entry:
    """A request in this stage. Rows at positions below `limit` may run: UNLIMITED once every stream has ended.

    `in_flight` is between `schedule` and `update`.
    """

    uid: int
    consumers: tuple[str, ...]
    streams: dict[str, Stream]
    prompt: int = 1
    limit: int = 0
    position: int = 0
    ready: bool = False
    in_flight: bool = False

    def reach(self) -> int:
        """A complete stream holds everything back until its end, an incremental one what lies beyond it (and beyond
        its last `lookahead` units, as long as they may be the last)."""
        limit = UNLIMITED
        for stream in self.streams.values():
            if stream.eos:
                continue
            if stream.mode == "complete":
                return 0
            # the first row needs one unit, the row at position p more than p + lookahead of them
            limit = min(limit, max(stream.units - stream.lookahead, min(stream.units, 1)))
        return limit


class StreamScheduler:
    """Tracks requests and their input streams."""

    def __init__(self, max_batch: int, lookahead: Mapping[str, int] = NO_LOOKAHEAD) -> None:
        """`lookahead` is the input contract's `lookahead_units` by producer, 0 where it is not named."""
        if max_batch < 1:
            raise ValueError(f"max_batch must be at least 1, got {max_batch}")
        self._max_batch = max_batch
        self._lookahead = lookahead
        self._entries: dict[int, Entry] = {}

    def add(self, request: StageRequest, modes: Mapping[str, EdgeMode]) -> bool:
        """Raises ValueError for a uid that is here already, KeyError for an input without a mode."""
        if request.uid in self._entries:
            raise ValueError(f"request {request.uid} is in this stage already")
        streams = {p: Stream(modes[p], self._lookahead.get(p, 0)) for p in request.inputs}
        entry = Entry(request.uid, request.consumers, streams)
        self._entries[request.uid] = entry
        return self._reconsider(entry)

    def extend(self, uid: int, producer: str, units: int, eos: bool) -> bool:
        """Raises KeyError for an unknown request or producer, ValueError for a stream that has ended."""
        entry = self._entries[uid]
        stream = entry.streams[producer]
        if stream.eos:
            raise ValueError(f"stream from {producer!r} of request {uid} has ended already")
        stream.units += units
        stream.eos = eos
        return bool(units or eos) and self._reconsider(entry)  # a message that brings nothing changes nothing

    def size(self, uid: int, tokens: int) -> None:
        """Raises KeyError for an unknown request, ValueError for a prompt without a token."""
        if tokens < 1:
            raise ValueError(f"the prompt of request {uid} has {tokens} tokens")
        self._entries[uid].prompt = tokens

    def _reconsider(self, entry: Entry) -> bool:
        entry.limit = entry.reach()
        if entry.limit <= 0:
            return False
        first, entry.ready = not entry.ready, True
        self._runnable(entry, first)
        return first

    def abort(self, uid: int) -> None:
        del self._entries[uid]
        self._forget(uid)

    def update(self, progress: tuple[RowProgress, ...]) -> None:
        """Raises ValueError for a row that was not scheduled; those of requests aborted meanwhile are ignored."""
        for row in progress:
            entry = self._entries.get(row.uid)
            if entry is None:
                continue
            if not entry.in_flight:
                raise ValueError(f"request {row.uid} was not part of the step")
            entry.in_flight = False
            entry.position += row.units
            if row.failed or row.finished is not None:
                self.abort(row.uid)
            else:
                self._advanced(entry, row)

    def _runnable(self, entry: Entry, first: bool) -> None:
        """The entry's input contract is satisfied (for the `first` time), or its input has grown since."""
        raise NotImplementedError

    def _advanced(self, entry: Entry, progress: RowProgress) -> None:
        """A row of the entry has run and the request goes on."""
        raise NotImplementedError

    def _forget(self, uid: int) -> None:
        """The request is gone."""
        raise NotImplementedError

    def gauges(self) -> tuple[tuple[str, int], ...]:
        return (("requests", len(self._entries)),)

    def __contains__(self, uid: int) -> bool:
        return uid in self._entries

    def __len__(self) -> int:
        return len(self._entries)


def take(consumers: Iterable[str], credits: dict[str, int]) -> bool:
    """Takes one credit for each consumer that has them counted, or none at all."""
    counted = [consumer for consumer in consumers if consumer in credits]
    if any(credits[consumer] < 1 for consumer in counted):
        return False
    for consumer in counted:
        credits[consumer] -= 1
    return True
