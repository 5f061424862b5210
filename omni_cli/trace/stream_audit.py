"""Audits messages and slots: what is read was put, for this reader and before, and a slot has one lease at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

from omni_cli.runtime.events import CONTROL, LeaseDropped, LeaseGranted, LeaseRead, MediaPut, ProcessDead, RunFinished
from omni_cli.runtime.lifecycle import REQUEST_ENDED, Lifecycle, Stage
from omni_cli.trace.audit import Audit
from omni_cli.trace.codec import TraceEvent
from stages.events import (
    InputReady,
    LeaseReleased,
    MessageGot,
    MessagePut,
    OutputProduced,
    ProcessReady,
    Scheduled,
    StepDone,
)
from stages.lease import Lease
from stages.messages import REQUEST
from stages.payload import PayloadRef

_Key = tuple[str, str, int]  # producer, consumer, seq
_Place = tuple[str, int, str, int]  # owner, which life of it, ring, slot


@dataclass(slots=True)
class _Sent:
    """A message that was put and not read yet."""

    key: _Key
    t_ns: int
    lease: Lease | None
    granted_ns: int = 0
    reader: str = ""
    kept: bool = False
    got: bool = False


@dataclass(slots=True)
class _Held:
    """A slot in use: by a message, or by a piece of a final output (`sent` is None)."""

    place: _Place
    sent: _Sent | None


class StreamAudit(Audit):
    """Follows each message from put to get and each slot from put to its end."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._sent: dict[int, dict[_Key, _Sent]] = {}
        self._held: dict[tuple[str, int], _Held] = {}
        self._users: dict[_Place, tuple[str, int]] = {}
        self._numbers: dict[str, int] = {}
        # Leases that were put a moment ago, each with its request and its reader's stage.
        self._undecided: dict[tuple[str, int], tuple[int, str]] = {}
        self._given_up: set[tuple[str, int]] = set()  # process, request: a message was given back unread
        self._ready: set[str] = set()
        self._written: dict[str, set[_Place]] = {}  # every slot that an owner has ever used
        self._lost_slots = 0  # at most so many are still marked as used, since nobody is left to free them

    def see(self, line: TraceEvent) -> Iterator[str]:
        event = line.event
        if self._undecided and (line.source != CONTROL or isinstance(event, ProcessDead)):
            yield from self._left_undecided()
        if self._given_up and isinstance(event, (StepDone, MessageGot, InputReady, Scheduled)):
            yield from self._goes_on(line.source, event)
        if isinstance(event, MessagePut):
            message = event.message
            key = (message.producer, message.consumer, message.seq)
            yield from self._put(event.uid, _Sent(key=key, t_ns=event.t_ns, lease=message.lease))
            yield from self._same_slot(message.ref, message.lease)
        elif isinstance(event, MediaPut):
            key = (REQUEST, event.consumer, 0)
            yield from self._put(event.uid, _Sent(key=key, t_ns=event.t_ns, lease=event.lease))
        elif isinstance(event, OutputProduced) and event.lease is not None:
            yield from self._take_slot(event.uid, event.lease, REQUEST, None)
            yield from self._same_slot(event.ref, event.lease)
        elif isinstance(event, LeaseGranted):
            yield from self._granted(event)
        elif isinstance(event, MessageGot):
            yield from self._got(line.source, event)
        elif isinstance(event, LeaseReleased):
            yield from self._released(line.source, event)
        elif isinstance(event, (LeaseRead, LeaseDropped)):
            yield from self._taken_back(event)
        elif isinstance(event, ProcessReady):
            self._ready.add(line.source)
        elif isinstance(event, ProcessDead):
            self._ready.discard(event.process)
            if event.cause != "exit code 0":
                self._lost_slots += len(self._written.get(event.process, ()))
        elif isinstance(event, RunFinished):
            known = len(self._held) + self._lost_slots
            if event.live_slots > known:
                yield f"{event.live_slots} slots are in use in the rings at the end, the trace accounts for {known}"

    def forget(self, uid: int) -> None:
        self._sent.pop(uid, None)
        self._given_up = {(source, other) for source, other in self._given_up if other != uid}

    def end(self) -> Iterator[str]:
        for (owner, number), held in self._held.items():
            if held.sent is not None and held.sent.got:
                yield f"lease {owner}#{number} was read by {held.sent.reader}, but never given back"

    def _same_slot(self, ref: PayloadRef | None, lease: Lease | None) -> Iterator[str]:
        slot = ref.slot if ref is not None and ref.segment else None
        if slot != (lease.slot if lease is not None else None):
            yield f"the payload lies in slot {slot}, its lease says {lease}"

    def _put(self, uid: int, sent: _Sent) -> Iterator[str]:
        producer, consumer, seq = sent.key
        messages = self._sent.setdefault(uid, {})
        if sent.key in messages and not (producer == REQUEST and self._lost(uid, consumer)):
            yield f"message {seq} of {producer}->{consumer} of request {uid} was put twice"
        messages[sent.key] = sent
        if sent.lease is not None:
            yield from self._take_slot(uid, sent.lease, consumer, sent)

    def _lost(self, uid: int, stage: str) -> bool:
        record = self._lifecycle.requests.get(uid)
        return record is not None and stage in record.stages and record.stages[stage].state is Stage.LOST

    def _take_slot(self, uid: int, lease: Lease, ring: str, sent: _Sent | None) -> Iterator[str]:
        key, place = (lease.owner, lease.number), (lease.owner, lease.generation, ring, lease.slot)
        user = self._users.get(place)
        if user is not None and user != key:
            which = f"slot {lease.slot} of {lease.owner} for {ring}"
            yield f"{which} was written under #{lease.number} while #{user[1]} lasts"
        if lease.number <= self._numbers.get(lease.owner, -1):
            yield f"lease {lease.owner}#{lease.number} comes after #{self._numbers[lease.owner]}: numbers count up"
        self._numbers[lease.owner] = max(lease.number, self._numbers.get(lease.owner, -1))
        self._users[place] = key
        self._undecided[key] = uid, ring
        self._written.setdefault(lease.owner, set()).add(place)
        self._held[key] = _Held(place=place, sent=sent)

    def _left_undecided(self) -> Iterator[str]:
        """What becomes of a slot is decided before the control plane takes anything else in, unless its request waits
        for a place in the reader's stage."""
        for (owner, number), (uid, stage) in tuple(self._undecided.items()):
            record = self._lifecycle.requests.get(uid)
            over = record is None or record.state in REQUEST_ENDED
            there = record is not None and stage in record.stages and not self._lost(uid, stage)
            if stage == REQUEST or over or there:
                del self._undecided[owner, number]
                yield f"lease {owner}#{number} of request {uid} was not granted, read or dropped at once"

    def _granted(self, event: LeaseGranted) -> Iterator[str]:
        self._undecided.pop((event.lease.owner, event.lease.number), None)
        consumer = event.reader.rpartition(".")[0]
        sent = self._sent.get(event.uid, {}).get((event.producer, consumer, event.seq))
        if sent is None or sent.lease != event.lease:
            lease = f"lease {event.lease.owner}#{event.lease.number}"
            yield f"{lease} was granted for {_what(event, consumer)}, which does not lie there"
            return
        record = self._lifecycle.requests.get(event.uid)
        stage = record.stages.get(consumer) if record is not None else None
        if stage is None or stage.process != event.reader:
            yield f"{_what(event, consumer)} went to {event.reader}, which does not have the request"
        elif event.reader not in self._ready:
            yield f"{_what(event, consumer)} went to {event.reader}, which does not live"
        sent.granted_ns, sent.reader, sent.kept, sent.got = event.t_ns, event.reader, event.kept, False

    def _got(self, source: str, event: MessageGot) -> Iterator[str]:
        consumer = source.rpartition(".")[0]
        sent = self._sent.get(event.uid, {}).get((event.producer, consumer, event.seq))
        if sent is None:
            yield f"{source} read {_what(event, consumer)}, which was not put"
            return
        if sent.lease is not None and sent.reader != source:
            yield f"{source} read {_what(event, consumer)}, which was granted to {sent.reader or 'nobody'}"
        if event.t_ns < (since_ns := max(sent.t_ns, sent.granted_ns)):
            yield f"{source} read {_what(event, consumer)} {since_ns - event.t_ns} ns before it was put and granted"
        if sent.lease is not None and (sent.lease.owner, sent.lease.number) not in self._held:
            yield f"{source} read {_what(event, consumer)} after its slot was given back"
        sent.got = True

    def _released(self, source: str, event: LeaseReleased) -> Iterator[str]:
        held = self._held.get((event.lease.owner, event.lease.number))
        if held is None or held.sent is None:
            return  # the ledger reports it
        if held.sent.kept:
            held.sent.reader = ""
        else:
            self._free(event.lease)
        if (early_ns := held.sent.granted_ns - event.t_ns) > 0:
            lease = f"lease {event.lease.owner}#{event.lease.number} of request {event.uid}"
            yield f"{lease} was released {early_ns} ns before it was granted"
        if not held.sent.got and event.uid in self._lifecycle.requests:
            self._given_up.add((source, event.uid))

    def _goes_on(self, source: str, event: StepDone | MessageGot | InputReady | Scheduled) -> Iterator[str]:
        """Messages are given back unread when the stage is done with the request, and only then."""
        for uid in [row.uid for row in event.rows] if isinstance(event, StepDone) else [event.uid]:
            if (source, uid) in self._given_up:
                yield f"{source} goes on with request {uid}, of which it has given a message back unread"

    def _taken_back(self, event: LeaseRead | LeaseDropped) -> Iterator[str]:
        held = self._free(event.lease)
        if held is None:
            return
        lease = f"lease {event.lease.owner}#{event.lease.number} of request {event.uid}"
        if isinstance(event, LeaseRead) and held.sent is not None:
            yield f"{lease} was read by the control plane, but holds a message for {held.sent.key[1]}"
        reader = held.sent.reader if held.sent is not None else ""
        if isinstance(event, LeaseDropped) and reader in self._ready:
            yield f"{lease} was dropped while its reader {reader} lives"

    def _free(self, lease: Lease) -> _Held | None:
        self._undecided.pop((lease.owner, lease.number), None)
        held = self._held.pop((lease.owner, lease.number), None)
        if held is not None and self._users.get(held.place) == (lease.owner, lease.number):
            del self._users[held.place]
        return held


def _what(event: LeaseGranted | MessageGot, consumer: str) -> str:
    return f"message {event.seq} of {event.producer}->{consumer} of request {event.uid}"
