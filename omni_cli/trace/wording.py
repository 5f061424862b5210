"""Events in plain words, for a person who steps through a request. Names processes, never line numbers."""

from collections.abc import Callable, Mapping
from typing import Any

from omni_cli.runtime.events import (
    Event,
    LeaseDropped,
    LeaseGranted,
    LeaseRead,
    MediaPut,
    OutputFinished,
    ProcessDead,
    ProcessNotStarted,
    ProcessStarted,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    StageCancelling,
    StageSubmitted,
)
from omni_cli.trace.codec import KINDS
from omni_cli.trace.show import counted
from stages.events import (
    InputReady,
    LeaseReleased,
    MessageGot,
    MessagePut,
    OutputProduced,
    Scheduled,
    StageCancelled,
    StageFailed,
    StageFinished,
    StepDone,
)
from stages.lease import Lease


def told(event: Event, uid: int | None = None) -> str:
    """What happened, as the verb of a sentence whose subject is the source. Of a step, the share of request `uid`."""
    if isinstance(event, StepDone):
        return _step(event, uid)
    teller = _TELLERS.get(type(event))
    return teller(event) if teller is not None else KINDS[type(event)].replace("_", " ")


def _step(event: StepDone, uid: int | None) -> str:
    text = f"does step {event.index} of {counted(len(event.rows), 'row')}"
    own = [f"{row.phase} from {row.position}, {counted(row.units, 'unit')}" for row in event.rows if row.uid == uid]
    return ": ".join([text, *own])


def _slot(lease: Lease | None) -> str:
    return "" if lease is None else f" in slot {lease.slot} of {lease.owner} (lease {lease.number})"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


def _put(event: MessagePut) -> str:
    message = event.message
    end = ", the last" if message.eos else ""
    return f"puts message {message.seq} for {message.consumer}{_slot(message.lease)}{end}"


def _produced(event: OutputProduced) -> str:
    end = f", the last: {event.reason}" if event.eos else ""
    return f"makes piece {event.seq} of {event.modality}, {counted(event.units, 'unit')}{_slot(event.lease)}{end}"


def _ended(event: OutputFinished) -> str:
    count = f"{counted(event.units, 'unit')}, {counted(event.chunks, 'piece')}"
    return f"ends {event.modality} as {event.outcome}: {count}"


def _admitted(event: RequestAdmitted) -> str:
    return f"takes on {event.request_id} for {_listed(event.outputs)}, by way of {_listed(event.stages)}"


def _granted(event: LeaseGranted) -> str:
    return f"lets {event.reader} read message {event.seq} of {event.producer}{_slot(event.lease)}"


_TELLERS: Mapping[type, Callable[[Any], str]] = {
    RequestAdmitted: _admitted,
    StageSubmitted: lambda e: f"gives it to {e.process}, which waits for {_listed(e.waits_for)}",
    LeaseGranted: _granted,
    MediaPut: lambda e: f"puts its media for {e.consumer}{_slot(e.lease)}",
    LeaseDropped: lambda e: f"takes back unread what lies{_slot(e.lease)}",
    LeaseRead: lambda e: f"reads the piece{_slot(e.lease)}",
    StageCancelling: lambda e: f"tells {e.stage} to let go of it",
    OutputFinished: _ended,
    RequestFinished: lambda e: "ends it as finished",
    RequestFailed: lambda e: f"ends it as failed: {e.error.kind} in {e.error.stage or 'no stage'}: {e.error.message}",
    RequestCancelled: lambda e: f"ends it as cancelled: {e.reason}",
    ProcessNotStarted: lambda e: f"cannot start {e.process}, generation {e.generation}: {e.cause}",
    ProcessStarted: lambda e: f"starts {e.process}, generation {e.generation}",
    ProcessDead: lambda e: f"hears that {e.process} is dead: {e.cause}",
    InputReady: lambda e: "has all that it needs to start",
    Scheduled: lambda e: "takes it into a step for the first time",
    MessagePut: _put,
    MessageGot: lambda e: f"reads message {e.seq} of {e.producer}",
    LeaseReleased: lambda e: f"gives back what lies{_slot(e.lease)}",
    OutputProduced: _produced,
    StageFinished: lambda e: f"is done with it: {e.reason}, {counted(e.units, 'unit')}",
    StageFailed: lambda e: f"fails it: {e.error.kind}: {e.error.message}",
    StageCancelled: lambda e: "has let go of it",
}
