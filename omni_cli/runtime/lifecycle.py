"""The life of a request as tables: request, stage, output, stream and lease, each a map from (state, event) to state.

The live run, the trace check, the replay and the diagram in the docs all read these tables; nothing else decides what
is legal. `Lifecycle` folds events over them and raises `IllegalTransition` for anything that they do not list.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from omni_cli.runtime.events import (
    Event,
    OutputFinished,
    ProcessDead,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    StageCancelling,
    StageSubmitted,
)
from stages.events import (
    InputReady,
    MessageGot,
    MessagePut,
    OutputProduced,
    Scheduled,
    StageCancelled,
    StageFailed,
    StageFinished,
    StepDone,
)


class Request(StrEnum):
    ABSENT = "absent"
    ADMITTED = "admitted"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Stage(StrEnum):
    ABSENT = "absent"
    WAITING = "waiting"  # submitted; its input contract is not satisfied yet
    READY = "ready"  # could run; waits for its turn
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLING = "cancelling"  # told to stop; what was on the wire may still arrive
    CANCELLED = "cancelled"
    LOST = "lost"  # its process died


class Output(StrEnum):
    PENDING = "pending"
    STARTED = "started"
    ENDED = "ended"  # the last piece was produced
    FINISHED = "finished"
    EMPTY = "empty"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Stream(StrEnum):
    ABSENT = "absent"
    OPEN = "open"
    ENDED = "ended"


class Process(StrEnum):
    ABSENT = "absent"
    STARTED = "started"
    READY = "ready"
    DEAD = "dead"


class Lease(StrEnum):
    ABSENT = "absent"
    HELD = "held"  # written by its owner, no reader fixed yet
    GRANTED = "granted"
    LENT = "lent"  # granted, and to be held again after the reading
    RELEASED = "released"


Table = Mapping[tuple[StrEnum, str], StrEnum]

REQUEST: Table = {
    (Request.ABSENT, "admitted"): Request.ADMITTED,
    (Request.ADMITTED, "submitted"): Request.RUNNING,
    (Request.RUNNING, "submitted"): Request.RUNNING,
    (Request.RUNNING, "finished"): Request.FINISHED,
    (Request.ADMITTED, "failed"): Request.FAILED,
    (Request.RUNNING, "failed"): Request.FAILED,
    (Request.ADMITTED, "cancelled"): Request.CANCELLED,
    (Request.RUNNING, "cancelled"): Request.CANCELLED,
}

STAGE: Table = {
    (Stage.ABSENT, "submitted"): Stage.WAITING,
    (Stage.WAITING, "got"): Stage.WAITING,
    (Stage.WAITING, "input ready"): Stage.READY,
    (Stage.READY, "got"): Stage.READY,
    (Stage.READY, "scheduled"): Stage.RUNNING,
    (Stage.RUNNING, "got"): Stage.RUNNING,
    (Stage.RUNNING, "step"): Stage.RUNNING,
    (Stage.RUNNING, "put"): Stage.RUNNING,
    (Stage.RUNNING, "produced"): Stage.RUNNING,
    (Stage.RUNNING, "finished"): Stage.FINISHED,
    **{(state, "failed"): Stage.FAILED for state in (Stage.WAITING, Stage.READY, Stage.RUNNING)},
    **{(state, "cancelling"): Stage.CANCELLING for state in (Stage.WAITING, Stage.READY, Stage.RUNNING)},
    **{
        (Stage.CANCELLING, late): Stage.CANCELLING
        for late in ("got", "input ready", "scheduled", "step", "put", "produced", "finished", "failed")
    },
    (Stage.CANCELLING, "cancelled"): Stage.CANCELLED,
    (Stage.LOST, "submitted"): Stage.WAITING,
    **{(state, "process dead"): Stage.LOST for state in (Stage.WAITING, Stage.READY, Stage.RUNNING, Stage.CANCELLING)},
}

OUTPUT: Table = {
    (Output.PENDING, "produced"): Output.STARTED,
    (Output.PENDING, "produced last"): Output.ENDED,
    (Output.STARTED, "produced"): Output.STARTED,
    (Output.STARTED, "produced last"): Output.ENDED,
    (Output.ENDED, "finished"): Output.FINISHED,
    (Output.ENDED, "empty"): Output.EMPTY,
    **{
        (state, str(end)): end
        for state in (Output.PENDING, Output.STARTED)
        for end in (Output.FAILED, Output.CANCELLED)
    },
    **{(state, late): state for state in (Output.FAILED, Output.CANCELLED) for late in ("produced", "produced last")},
}

STREAM: Table = {
    (Stream.ABSENT, "put"): Stream.OPEN,
    (Stream.ABSENT, "put last"): Stream.ENDED,
    (Stream.OPEN, "put"): Stream.OPEN,
    (Stream.OPEN, "put last"): Stream.ENDED,
}

LEASE: Table = {
    (Lease.ABSENT, "put"): Lease.HELD,
    (Lease.HELD, "granted"): Lease.GRANTED,
    (Lease.HELD, "granted to keep"): Lease.LENT,
    (Lease.LENT, "released"): Lease.HELD,
    (Lease.LENT, "reader dead"): Lease.HELD,
    (Lease.HELD, "read"): Lease.RELEASED,
    (Lease.HELD, "dropped"): Lease.RELEASED,
    (Lease.GRANTED, "released"): Lease.RELEASED,
    (Lease.GRANTED, "dropped"): Lease.RELEASED,
}

PROCESS: Table = {
    (Process.ABSENT, "started"): Process.STARTED,
    (Process.STARTED, "ready"): Process.READY,
    (Process.STARTED, "dead"): Process.DEAD,
    (Process.READY, "dead"): Process.DEAD,
    (Process.DEAD, "started"): Process.STARTED,
    (Process.DEAD, "not started"): Process.DEAD,
}

TABLES: Mapping[str, Table] = {
    "request": REQUEST, "stage": STAGE, "output": OUTPUT, "stream": STREAM, "lease": LEASE, "process": PROCESS,
}  # fmt: skip

REQUEST_ENDED = frozenset({Request.FINISHED, Request.FAILED, Request.CANCELLED})
STAGE_ENDED = frozenset({Stage.FINISHED, Stage.FAILED, Stage.CANCELLED, Stage.LOST})
OUTPUT_ENDED = frozenset({Output.FINISHED, Output.EMPTY, Output.FAILED, Output.CANCELLED})


class IllegalTransition(Exception):
    """An event that the tables do not allow. `uid` is the request concerned, None if there is none."""

    def __init__(self, subject: str, state: str, event: str, uid: int | None) -> None:
        super().__init__(f"{subject} is {state}: {event!r} cannot happen")
        self.uid = uid


S = TypeVar("S", bound=StrEnum)
_PLACE, _STREAM, _OUTPUT = "request {} in {}", "stream {}->{} of request {}", "output {} of request {}"


def advance(table: Table, state: S, event: str, uid: int | None, subject: str, *names: object) -> S:
    """The state after `event`, or IllegalTransition. `names` go into `subject`'s braces only then: most that happens
    passes here."""
    try:
        return table[state, event]  # type: ignore[return-value]
    except KeyError:
        raise IllegalTransition(subject.format(*names), str(state), event, uid) from None


@dataclass(slots=True)
class OutputRecord:
    state: Output = Output.PENDING
    chunks: int = 0
    units: int = 0


@dataclass(slots=True)
class StreamRecord:
    """`put` and `got` are the next sequence numbers on either side."""

    state: Stream = Stream.ABSENT
    put: int = 0
    got: int = 0


@dataclass(slots=True)
class StageRecord:
    """A request in one stage. `position` is how many units it has done there."""

    process: str
    waits_for: tuple[str, ...]
    state: Stage = Stage.ABSENT
    position: int = 0


@dataclass(slots=True)
class RequestRecord:
    """A request. `places` has the stages once more, by the process that the request is in."""

    admitted: RequestAdmitted
    state: Request = Request.ABSENT
    outputs: dict[str, OutputRecord] = field(default_factory=dict)
    stages: dict[str, StageRecord] = field(default_factory=dict)
    places: dict[str, StageRecord] = field(default_factory=dict)
    streams: dict[tuple[str, str], StreamRecord] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Ended for the caller, and nothing of it is left in any stage."""
        return self.state in REQUEST_ENDED and all(stage.state in STAGE_ENDED for stage in self.stages.values())


class Lifecycle:
    """Folds events, each with its source, into the state of every request that is not over yet."""

    def __init__(self) -> None:
        self.requests: dict[int, RequestRecord] = {}

    def apply(self, source: str, event: Event) -> None:
        """Takes one event in. Events that concern no request's state (steps' timing, leases, processes) pass."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, source, event)

    def forget(self, uid: int) -> None:
        del self.requests[uid]

    def record(self, uid: int, event: str) -> RequestRecord:
        try:
            return self.requests[uid]
        except KeyError:
            raise IllegalTransition(f"request {uid}", Request.ABSENT, event, uid) from None

    def _on_stage(self, source: str, uid: int, event: str) -> StageRecord:
        """The place's next state."""
        record = self.record(uid, event).places.get(source)
        state = Stage.ABSENT if record is None else record.state  # events come only from where the request is
        after = STAGE.get((state, event))
        if record is None or after is None:
            raise IllegalTransition(f"request {uid} in {source}", state, event, uid)
        record.state = after  # type: ignore[assignment]
        return record

    def _on_request(self, uid: int, event: str) -> RequestRecord:
        record = self.record(uid, event)
        record.state = advance(REQUEST, record.state, event, uid, "request {}", uid)
        return record

    def _admitted(self, source: str, event: RequestAdmitted) -> None:
        if event.uid in self.requests:
            raise IllegalTransition(f"request {event.uid}", self.requests[event.uid].state, "admitted", event.uid)
        outputs = {modality: OutputRecord() for modality in event.outputs}
        self.requests[event.uid] = RequestRecord(admitted=event, outputs=outputs)
        self._on_request(event.uid, "admitted")

    def _submitted(self, source: str, event: StageSubmitted) -> None:
        record = self._on_request(event.uid, "submitted")
        before = record.stages.get(event.stage)
        state = Stage.ABSENT if before is None else before.state
        if state not in (Stage.ABSENT, Stage.LOST) or event.stage not in record.admitted.stages:
            raise IllegalTransition(f"request {event.uid} in {event.stage}", "fixed", "submitted", event.uid)
        if before is not None:  # it runs again, from its whole input
            record.places.pop(before.process, None)
            for (_, consumer), stream in record.streams.items():
                stream.got = 0 if consumer == event.stage else stream.got
        stage = StageRecord(process=event.process, waits_for=event.waits_for, state=state)
        record.stages[event.stage] = record.places[event.process] = stage
        self._on_stage(event.process, event.uid, "submitted")

    def _cancelling(self, source: str, event: StageCancelling) -> None:
        record = self.record(event.uid, "cancelling").stages.get(event.stage)
        if record is None:
            raise IllegalTransition(f"request {event.uid} in {event.stage}", Stage.ABSENT, "cancelling", event.uid)
        self._on_stage(record.process, event.uid, "cancelling")

    def _process_dead(self, source: str, event: ProcessDead) -> None:
        for uid, record in self.requests.items():
            for stage in record.stages.values():
                if stage.process == event.process and stage.state not in STAGE_ENDED:
                    stage.state = advance(STAGE, stage.state, "process dead", uid, _PLACE, uid, event.process)

    def _step(self, source: str, event: StepDone) -> None:
        for row in event.rows:
            record = self._on_stage(source, row.uid, "step")
            if row.position != record.position:
                where = f"request {row.uid} in {source}"
                raise IllegalTransition(where, f"at {record.position}", f"step from {row.position}", row.uid)
            record.position += row.units

    def _put(self, source: str, event: MessagePut) -> None:
        message = event.message
        if message.uid != event.uid or message.producer != source.rpartition(".")[0]:
            raise IllegalTransition(f"message of {message.producer} for {message.uid}", "foreign", "put", event.uid)
        self._on_stage(source, event.uid, "put")
        streams = self.requests[event.uid].streams
        stream = streams.setdefault((message.producer, message.consumer), StreamRecord())
        names = message.producer, message.consumer, event.uid
        if message.seq != stream.put:
            at = f"at message {stream.put}"
            raise IllegalTransition(_STREAM.format(*names), at, f"put of message {message.seq}", event.uid)
        stream.state = advance(STREAM, stream.state, "put last" if message.eos else "put", event.uid, _STREAM, *names)
        stream.put += 1

    def _got(self, source: str, event: MessageGot) -> None:
        self._on_stage(source, event.uid, "got")
        consumer = source.rpartition(".")[0]
        stream = self.requests[event.uid].streams.setdefault((event.producer, consumer), StreamRecord())
        if event.seq != stream.got:
            name = _STREAM.format(event.producer, consumer, event.uid)
            raise IllegalTransition(name, f"at message {stream.got}", f"get of message {event.seq}", event.uid)
        stream.got += 1

    def _produced(self, source: str, event: OutputProduced) -> None:
        self._on_stage(source, event.uid, "produced")
        output = self.requests[event.uid].outputs.get(event.modality)
        if output is None or event.seq != output.chunks:
            at = "not asked for" if output is None else f"at piece {output.chunks}"
            raise IllegalTransition(_OUTPUT.format(event.modality, event.uid), at, f"piece {event.seq}", event.uid)
        word = "produced last" if event.eos else "produced"
        output.state = advance(OUTPUT, output.state, word, event.uid, _OUTPUT, event.modality, event.uid)
        output.chunks += 1
        output.units += event.units

    def _output_finished(self, source: str, event: OutputFinished) -> None:
        names = event.modality, event.uid
        output = self.record(event.uid, "output finished").outputs.get(event.modality)
        if output is None or (output.units, output.chunks) != (event.units, event.chunks):
            said = f"{event.units} units in {event.chunks}"
            raise IllegalTransition(_OUTPUT.format(*names), "counted otherwise", said, event.uid)
        output.state = advance(OUTPUT, output.state, event.outcome, event.uid, _OUTPUT, *names)

    def _request_finished(self, source: str, event: RequestFinished) -> None:
        record = self._on_request(event.uid, "finished")
        open_outputs = [m for m, o in record.outputs.items() if o.state not in (Output.FINISHED, Output.EMPTY)]
        if open_outputs:
            raise IllegalTransition(f"request {event.uid}", f"without {open_outputs}", "finished", event.uid)


_HANDLERS: Mapping[type, Callable[[Lifecycle, str, Any], object]] = {
    RequestAdmitted: Lifecycle._admitted,
    StageSubmitted: Lifecycle._submitted,
    StageCancelling: Lifecycle._cancelling,
    ProcessDead: Lifecycle._process_dead,
    StepDone: Lifecycle._step,
    MessagePut: Lifecycle._put,
    MessageGot: Lifecycle._got,
    OutputProduced: Lifecycle._produced,
    OutputFinished: Lifecycle._output_finished,
    RequestFinished: Lifecycle._request_finished,
    InputReady: lambda life, source, event: life._on_stage(source, event.uid, "input ready"),
    Scheduled: lambda life, source, event: life._on_stage(source, event.uid, "scheduled"),
    StageFinished: lambda life, source, event: life._on_stage(source, event.uid, "finished"),
    StageFailed: lambda life, source, event: life._on_stage(source, event.uid, "failed"),
    StageCancelled: lambda life, source, event: life._on_stage(source, event.uid, "cancelled"),
    RequestFailed: lambda life, source, event: life._on_request(event.uid, "failed"),
    RequestCancelled: lambda life, source, event: life._on_request(event.uid, "cancelled"),
}
