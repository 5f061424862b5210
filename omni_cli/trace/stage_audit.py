"""Audits the way of each request: taken on and passed on as the run's edges say, and complete where it says so."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from omni_cli.runtime.events import (
    CONTROL,
    MediaPut,
    ProcessDead,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RunStarted,
    StageCancelling,
    StageSubmitted,
)
from omni_cli.runtime.lifecycle import (
    REQUEST_ENDED,
    STAGE,
    STAGE_ENDED,
    IllegalTransition,
    Lifecycle,
    Output,
    Request,
    RequestRecord,
    Stage,
    Stream,
    advance,
)
from omni_cli.trace.audit import Audit
from omni_cli.trace.codec import KINDS, TraceEvent
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
from stages.messages import REQUEST

_WORDS: Mapping[type, str] = {
    InputReady: "input ready",
    Scheduled: "scheduled",
    StepDone: "step",
    MessagePut: "put",
    MessageGot: "got",
    OutputProduced: "produced",
    StageFinished: "finished",
    StageFailed: "failed",
}
_OPEN_OUTPUT = frozenset({Output.PENDING, Output.STARTED, Output.ENDED})


@dataclass(slots=True)
class _Work:
    """A request in one stage as the stage itself tells it: a cancel on its way changes nothing in what is legal."""

    submitted_ns: int
    state: Stage = Stage.WAITING
    cancelling_ns: int = 0


@dataclass(slots=True)
class _Case:
    works: dict[str, _Work] = field(default_factory=dict)
    media: set[str] = field(default_factory=set)  # first stages that media were put for
    ended: set[str] = field(default_factory=set)  # outputs whose last piece was produced


class StageAudit(Audit):
    """Holds each request against the run's edges and outputs, and each stage against its own account of itself."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._modes: dict[tuple[str, str], str] = {}
        self._producers: dict[str, str] = {}  # by output
        self._stages: tuple[str, ...] = ()
        self._seen: set[int] = set()
        self._cases: dict[int, _Case] = {}

    def see(self, line: TraceEvent) -> Iterator[str]:
        event = line.event
        if isinstance(event, RunStarted):
            self._modes = {(producer, consumer): mode for producer, consumer, mode in event.edges}
            self._producers = dict(event.outputs)
            self._stages = event.stages
        elif isinstance(event, RequestAdmitted):
            yield from self._admitted(event)
        elif isinstance(event, StepDone):
            for row in event.rows:
                yield from self._told(line.source, row.uid, event)
        elif isinstance(event, ProcessDead):
            yield from self._stopped(event)
        else:
            uid = getattr(event, "uid", None)
            record = self._lifecycle.requests.get(uid) if uid is not None else None
            if record is None or uid is None:  # of nobody: the tables report it where it matters
                return
            if line.source == CONTROL:
                yield from self._decided(uid, record, event)
            else:
                yield from self._told(line.source, uid, event)

    def forget(self, uid: int) -> None:
        self._cases.pop(uid, None)

    # what the control plane decides

    def _admitted(self, event: RequestAdmitted) -> Iterator[str]:
        if event.uid in self._seen:
            yield f"request {event.uid} was admitted twice"
        self._seen.add(event.uid)
        self._cases.setdefault(event.uid, _Case())
        foreign = [m for m in event.outputs if m not in self._producers]
        foreign += [stage for stage in event.stages if stage not in self._stages]
        if foreign or not event.outputs:
            yield f"request {event.uid} asks for {', '.join(foreign) or 'no output'}, which this run does not have"

    def _decided(self, uid: int, record: RequestRecord, event: object) -> Iterator[str]:
        if isinstance(event, MediaPut):
            again = event.consumer in record.stages and record.stages[event.consumer].state is Stage.LOST
            if record.state is not Request.ADMITTED and not again:
                yield f"media of request {uid} were put when it was {record.state}"
            self._cases[uid].media.add(event.consumer)
        elif isinstance(event, StageSubmitted):
            yield from self._submitted(record, event)
        elif isinstance(event, StageCancelling):
            if record.state not in (Request.FAILED, Request.CANCELLED):
                yield f"request {uid} is cancelled in {event.stage} while it is {record.state}"
            if event.stage in self._cases[uid].works:
                self._cases[uid].works[event.stage].cancelling_ns = event.t_ns
        elif isinstance(event, (RequestFailed, RequestCancelled)):
            other = Output.CANCELLED if isinstance(event, RequestFailed) else Output.FAILED
            odd = [f"{m} is {o.state}" for m, o in record.outputs.items() if o.state in _OPEN_OUTPUT | {other}]
            if odd:
                yield f"{KINDS[type(event)]} of request {uid} while output {', '.join(odd)}"
        if isinstance(event, (RequestFinished, RequestCancelled)):
            waits = {Stage.LOST} if isinstance(event, RequestCancelled) else set()  # to be run again
            broken = [s.process for s in record.stages.values() if s.state in {Stage.FAILED, Stage.LOST} - waits]
            if broken and record.state not in REQUEST_ENDED:
                yield f"{KINDS[type(event)]} of request {uid}, which has failed in {', '.join(broken)}"

    def _submitted(self, record: RequestRecord, event: StageSubmitted) -> Iterator[str]:
        case = self._cases[event.uid]
        held = record.stages.get(event.stage)
        if event.stage not in case.works or (held is not None and held.state is Stage.LOST):
            case.works[event.stage] = _Work(submitted_ns=event.t_ns)
        feeds = {p for p, c in self._modes if c == event.stage and p in record.admitted.stages}
        due = feeds | ({REQUEST} if event.stage in case.media else set())
        if set(event.waits_for) != due:
            said, right = ", ".join(event.waits_for) or "nothing", ", ".join(sorted(due)) or "nothing"
            yield f"request {event.uid} waits in {event.stage} for {said}; by the run's edges it is {right}"
        if feeds and not any((producer, event.stage) in record.streams for producer in feeds):
            yield f"request {event.uid} was submitted to {event.stage} before anything was put for it"

    def _stopped(self, event: ProcessDead) -> Iterator[str]:
        """A process is stopped when it has nothing left; only one that had to be killed takes a cancelled one along."""
        for uid, record in self._lifecycle.requests.items():
            for stage in record.stages.values():
                killed = stage.state is Stage.CANCELLING and event.cause != "exit code 0"
                if event.expected and stage.process == event.process and stage.state not in STAGE_ENDED and not killed:
                    yield f"{event.process} was stopped while request {uid} was {stage.state} in it"

    # what a stage tells

    def _told(self, source: str, uid: int, event: object) -> Iterator[str]:
        stage = source.rpartition(".")[0]
        record = self._lifecycle.requests.get(uid)
        work = self._cases[uid].works.get(stage) if uid in self._cases else None
        held = record.stages.get(stage) if record is not None else None
        if record is None or work is None or held is None or held.process != source:
            return  # the tables report it: a process speaks of a request that it does not have
        time = event.t_ns  # type: ignore[attr-defined]
        if time < work.submitted_ns:
            yield f"{source} tells of request {uid} {work.submitted_ns - time} ns before it was given to it"
        if isinstance(event, StageCancelled):
            if time < work.cancelling_ns:
                yield f"{source} gave request {uid} up {work.cancelling_ns - time} ns before it was told to"
            yield from self._cancelled(stage, uid, record, work)
        if (word := _WORDS.get(type(event))) is not None:
            try:
                work.state = advance(STAGE, work.state, word, uid, "request {} in {}, cancel aside,", uid, source)
            except IllegalTransition as error:
                if held.state is Stage.CANCELLING:  # otherwise the tables report the same
                    yield str(error)
        if isinstance(event, MessagePut):
            yield from self._put(stage, record, event)
        elif isinstance(event, OutputProduced):
            yield from self._produced(stage, event)
        elif isinstance(event, StageFinished):
            yield from self._finished(stage, record, event)

    def _put(self, stage: str, record: RequestRecord, event: MessagePut) -> Iterator[str]:
        message = event.message
        mode = self._modes.get((stage, message.consumer))
        if mode is None or message.consumer not in record.admitted.stages:
            yield f"{stage} put for {message.consumer}, which it does not feed in request {event.uid}"
        elif mode == "complete" and not message.eos:
            yield f"message {message.seq} of request {event.uid} for {message.consumer} is not the whole stream"

    def _produced(self, stage: str, event: OutputProduced) -> Iterator[str]:
        if self._producers.get(event.modality) != stage:
            yield f"{stage} produced {event.modality}, which is not its output"
        if event.eos != (event.reason is not None):
            yield f"piece {event.seq} of {event.modality} of request {event.uid}: only a last piece has a reason"
        if event.modality in self._cases[event.uid].ended:
            yield f"piece {event.seq} of {event.modality} of request {event.uid} came after the last one"
        if event.eos:
            self._cases[event.uid].ended.add(event.modality)

    def _finished(self, stage: str, record: RequestRecord, event: StageFinished) -> Iterator[str]:
        uid, done = event.uid, record.stages[stage].position
        if event.units != done:
            yield f"{stage} finished request {uid} with {event.units} units, its steps have done {done}"
        for what in self._unended(stage, uid, record):
            yield f"{stage} finished request {uid}, but never ended {what}"

    def _cancelled(self, stage: str, uid: int, record: RequestRecord, work: _Work) -> Iterator[str]:
        """With the last message or piece the stage says that it has finished; no cancel comes in between."""
        if work.state is Stage.RUNNING and not list(self._unended(stage, uid, record)):
            yield f"{stage} had ended all that it makes for request {uid}, but never finished it"

    def _unended(self, stage: str, uid: int, record: RequestRecord) -> Iterator[str]:
        for producer, consumer in self._modes:
            if producer == stage and consumer in record.admitted.stages:
                stream = record.streams.get((producer, consumer))
                if stream is None or stream.state is not Stream.ENDED:
                    yield f"the stream to {consumer}"
        for modality in record.outputs:
            if self._producers.get(modality) == stage and modality not in self._cases[uid].ended:
                yield f"its {modality}"
