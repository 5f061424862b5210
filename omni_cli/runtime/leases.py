"""The ledger of leases: who may read which slot, until when. Fed by the same events as the lifecycle tables.

It frees nothing itself: it says which owner may have its slot back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omni_cli.runtime.events import Event, LeaseDropped, LeaseGranted, LeaseRead, MediaPut, ProcessDead
from omni_cli.runtime.lifecycle import LEASE, advance
from omni_cli.runtime.lifecycle import Lease as State
from stages.events import LeaseReleased, MessagePut, OutputProduced
from stages.lease import Lease
from stages.messages import REQUEST


@dataclass(slots=True)
class Holding:
    """One live lease: `reader` is the process that may read it, empty until it is granted."""

    lease: Lease
    uid: int
    state: State = State.ABSENT
    reader: str = ""


class LeaseLedger:
    """All live leases of a run by (owner, number)."""

    def __init__(self) -> None:
        self._live: dict[tuple[str, int], Holding] = {}

    def __len__(self) -> int:
        return len(self._live)

    def live(self) -> tuple[Holding, ...]:
        return tuple(self._live.values())

    def is_held(self, lease: Lease) -> bool:
        """Whether the slot is in use and nobody is reading it."""
        holding = self._live.get((lease.owner, lease.number))
        return holding is not None and holding.state is State.HELD

    def holds(self, owner: str, generation: int) -> bool:
        """Whether anything lives in what that life of a process has written."""
        return any(h.lease.owner == owner and h.lease.generation == generation for h in self._live.values())

    def read_by(self, process: str) -> tuple[Holding, ...]:
        return tuple(h for h in self._live.values() if h.reader == process)

    def apply(self, source: str, event: Event) -> None:
        """Takes one event in; events without a lease pass. IllegalTransition if the lease is not where it should be."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, source, event)

    def _granted(self, source: str, event: LeaseGranted) -> None:
        word = "granted to keep" if event.kept else "granted"
        self._move(event.lease, event.uid, word, "").reader = event.reader

    def _released(self, source: str, event: LeaseReleased) -> None:
        holding = self._move(event.lease, event.uid, "released", source)
        holding.reader = ""
        if holding.state is State.RELEASED:
            del self._live[event.lease.owner, event.lease.number]

    def _process_dead(self, source: str, event: ProcessDead) -> None:
        for holding in self.read_by(event.process):
            if holding.state is State.LENT:
                self._move(holding.lease, holding.uid, "reader dead", event.process).reader = ""

    def _put(self, source: str, uid: int, lease: Lease | None) -> None:
        if lease is None:
            return
        key = (lease.owner, lease.number)
        holding = self._live.get(key) or Holding(lease=lease, uid=uid)
        event = "put" if lease.owner == source else f"foreign put by {source}"
        holding.state = advance(LEASE, holding.state, event, uid, "lease {}#{}", lease.owner, lease.number)
        self._live[key] = holding

    def _move(self, lease: Lease, uid: int, event: str, reader: str) -> Holding:
        holding = self._live.get((lease.owner, lease.number), None) or Holding(lease=lease, uid=uid)
        if holding.uid != uid or holding.lease != lease or (reader and holding.reader != reader):
            event = f"{event} for request {uid} by {reader or 'omni'}"
        names = lease.owner, lease.number, holding.uid
        holding.state = advance(LEASE, holding.state, event, uid, "lease {}#{} of request {}", *names)
        return holding

    def _end(self, lease: Lease, uid: int, event: str, reader: str) -> None:
        self._move(lease, uid, event, reader)
        del self._live[lease.owner, lease.number]


_HANDLERS: Mapping[type, Callable[[LeaseLedger, str, Any], None]] = {
    MessagePut: lambda ledger, source, event: ledger._put(source, event.uid, event.message.lease),
    OutputProduced: lambda ledger, source, event: ledger._put(source, event.uid, event.lease),
    MediaPut: lambda ledger, source, event: ledger._put(f"{REQUEST}.{event.consumer}", event.uid, event.lease),
    LeaseGranted: LeaseLedger._granted,
    LeaseReleased: LeaseLedger._released,
    ProcessDead: LeaseLedger._process_dead,
    LeaseRead: lambda ledger, source, event: ledger._end(event.lease, event.uid, "read", ""),
    LeaseDropped: lambda ledger, source, event: ledger._end(event.lease, event.uid, "dropped", ""),
}
