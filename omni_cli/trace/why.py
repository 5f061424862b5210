"""Says in a paragraph what a request waits for: of a trace at any moment, and of a running server right now.

Reads the state that the lifecycle tables and the lease ledger are in; decides nothing and knows no clock of its own.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from omni_cli.runtime.events import (
    CONTROL,
    Event,
    ProcessDead,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RunStarted,
)
from omni_cli.runtime.leases import LeaseLedger
from omni_cli.runtime.lifecycle import (
    OUTPUT_ENDED,
    REQUEST_ENDED,
    STAGE_ENDED,
    IllegalTransition,
    Lifecycle,
    Output,
    RequestRecord,
    Stage,
    StageRecord,
    Stream,
    StreamRecord,
)
from omni_cli.runtime.lifecycle import Lease as LeaseState
from omni_cli.trace.codec import TraceEvent
from omni_cli.trace.frame import happened_ns
from omni_cli.trace.show import duration, plain
from omni_cli.trace.summary import RequestSummary
from stages.events import ProcessReady, StepDone
from stages.messages import REQUEST

NAMED = 5  # other requests in a stage that are named


@dataclass(slots=True)
class LastHeard:
    """A listener: when each stage process last said something of each request that has not ended, ns; and which
    processes of a stage are ready, once one was."""

    at: dict[int, dict[str, int]] = field(default_factory=dict)
    ready: dict[str, set[str]] = field(default_factory=dict)

    def __call__(self, source: str, event: Event) -> None:
        if isinstance(event, ProcessReady):
            self.ready.setdefault(source.rpartition(".")[0], set()).add(source)
        elif isinstance(event, StepDone):
            for row in event.rows:
                self._hear(row.uid, source, event.end_ns)
        elif isinstance(event, RequestAdmitted):
            self.at[event.uid] = {}
        elif isinstance(event, RequestFinished | RequestFailed | RequestCancelled):
            self.at.pop(event.uid, None)
        elif isinstance(event, ProcessDead):
            self.ready.get(event.process.rpartition(".")[0], set()).discard(event.process)
            for places in self.at.values():
                places.pop(event.process, None)
        elif source != CONTROL and (uid := getattr(event, "uid", None)) is not None:
            self._hear(uid, source, event.t_ns)

    def _hear(self, uid: int, source: str, at_ns: int) -> None:
        if uid in self.at:  # what comes late is of nobody any more
            self.at[uid][source] = at_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The whole state of a run at `now_ns`. `run` has its topology."""

    run: RunStarted
    lifecycle: Lifecycle
    ledger: LeaseLedger
    heard: LastHeard
    now_ns: int

    def find(self, request_id: str) -> RequestRecord | None:
        """The latest request of this name."""
        records = reversed(self.lifecycle.requests.values())
        return next((record for record in records if record.admitted.request_id == request_id), None)

    def why(self, record: RequestRecord) -> str:
        """The paragraph: each output that has not ended, and the stages that hold it up, the nearest first."""
        return " ".join(plain(sentence) for sentence in _Paragraph(self, record).sentences())


def moment(events: Iterable[TraceEvent], request_id: str, after_ns: int | None) -> Moment | None:
    """The state of the run `after_ns` after the admission of the request (None: at the end of the trace).

    None where the trace has no start. What happened by then is what is stamped by then, be it heard of later.
    """
    lines = list(events)
    started = next((line.event for line in lines if isinstance(line.event, RunStarted)), None)
    if started is None:
        return None
    admitted_ns = [line.event.t_ns for line in lines if getattr(line.event, "request_id", None) == request_id]
    if after_ns is None or not admitted_ns:
        end_ns = max(happened_ns(line.event) for line in lines)
    else:
        end_ns = admitted_ns[-1] + after_ns
    lifecycle, ledger, heard = Lifecycle(), LeaseLedger(), LastHeard()
    for line in lines:
        if happened_ns(line.event) <= end_ns:
            heard(line.source, line.event)
            with suppress(IllegalTransition):  # the live run went on as well; `omni trace check` reports it
                lifecycle.apply(line.source, line.event)
                ledger.apply(line.source, line.event)
    return Moment(run=started, lifecycle=lifecycle, ledger=ledger, heard=heard, now_ns=end_ns)


def ending(request: RequestSummary) -> str:
    """How a request ended that has."""
    text = f"{request.request_id} {request.status} after {duration(request.total_ns)}"
    if request.error is not None:
        where = f" in stage {request.error.stage}" if request.error.stage else ""
        text += f": {request.error.kind}{where}: {request.error.message}"
    elif request.reason:
        text += f": {request.reason}"
    outputs = [
        f"the last piece of {name} came after {duration(flow.last_ns - request.admitted_ns)}"
        for name, flow in request.outputs.items()
        if flow.last_ns is not None
    ]
    return plain(". ".join([text, ", ".join(outputs)] if outputs else [text]) + ".")


class _Paragraph:
    def __init__(self, at: Moment, record: RequestRecord) -> None:
        self._at = at
        self._record = record
        self._uid = record.admitted.uid
        self._said: set[str] = set()

    def sentences(self) -> Iterator[str]:
        record = self._record
        age = duration(self._at.now_ns - record.admitted.t_ns)
        yield f"{record.admitted.request_id} was admitted {age} before and is {record.state}."
        if record.state in REQUEST_ENDED:
            yield from self._letting_go()
            return
        ended = [name for name, output in record.outputs.items() if output.state in OUTPUT_ENDED]
        pending = [name for name in record.outputs if name not in ended]
        if ended:
            yield f"{_listed(ended)} has ended, but a request ends with the last of its outputs."
        homes = dict(self._at.run.outputs)
        for name in pending:
            if name in homes:
                yield from self._output(name, homes[name])
            else:
                yield f"No stage of this run makes {name}."

    def _letting_go(self) -> Iterator[str]:
        left = [stage for stage in self._record.stages.values() if stage.state not in STAGE_ENDED]
        if left:
            yield f"{_listed(stage.process for stage in left)} was told to let go of it and has not answered."

    def _output(self, name: str, stage: str) -> Iterator[str]:
        output = self._record.outputs[name]
        if output.state is Output.ENDED:
            yield f"{name} is complete ({output.units} units) and was not routed to the caller yet."
            return
        yield f"{name} has {output.units} units so far; {stage} makes it."
        yield from self._stage(stage)

    def _stage(self, stage: str) -> Iterator[str]:
        """What the stage waits for, then the same of the producers that it waits for."""
        if stage in self._said:
            return
        self._said.add(stage)
        record = self._record.stages.get(stage)
        if record is None:
            yield from self._absent(stage)
        elif record.state is Stage.WAITING:
            waits = tuple(self._inputs(stage, record, f"{record.process} has it and waits for data:"))
            yield from waits or (f"It is on its way to {record.process}, which has not taken it up.",)
        elif record.state is Stage.READY:
            more = tuple(self._inputs(stage, record, "Of its input,"))
            piece = ", or for a larger piece of its input" if more else ""
            yield f"{record.process} has what it needs to start and waits for a slot{piece}: {self._others(record)}."
            yield from more
        elif record.state is Stage.RUNNING:
            yield f"{record.process} is running it, at unit {record.position}{self._since(record)}."
            yield from self._unread(record)
            yield from self._inputs(stage, record, "Of its input,")
        elif record.state is Stage.CANCELLING:
            yield f"{record.process} was told to stop and has not answered."
        elif record.state is Stage.LOST:
            yield f"{record.process} has died with it."
            yield from self._dead(stage)
            yield "It is run again as soon as there is a place for it, or fails if that cannot be."
        else:
            yield f"{record.process} is done with it ({record.state}), and what it said last was not routed yet."

    def _dead(self, stage: str) -> Iterator[str]:
        if self._at.heard.ready.get(stage) == set():
            yield f"No process of {stage} is alive; it waits for one to be started again."

    def _absent(self, stage: str) -> Iterator[str]:
        yield from self._dead(stage)
        producers = [p for p in self._producers(stage) if p in self._record.admitted.stages]
        if not producers:
            yield f"It was not submitted to {stage}: it was just admitted, or waits for a place or its media for room."
            return
        put = [p for p in producers if (s := self._record.streams.get((p, stage))) is not None and s.put]
        if put:
            yield f"{_listed(put)} is done with a message for {stage}, but it was not routed there yet."
            return
        yield f"It was not submitted to {stage}: nothing has come from {_listed(producers)}."
        for producer in producers:
            yield from self._whole(producer, stage)
            yield from self._stage(producer)

    def _inputs(self, stage: str, record: StageRecord, head: str) -> Iterator[str]:
        for producer in record.waits_for:
            stream = self._record.streams.get((producer, stage), StreamRecord())
            if producer == REQUEST:
                if not stream.got:
                    yield f"{head} the media of the request were not read yet."
                continue
            if stream.state is Stream.ENDED and stream.got == stream.put:
                continue
            rest = ", the end with them" if stream.state is Stream.ENDED else ", and the stream goes on"
            yield f"{head} {stream.got} of the {stream.put} messages put by {producer} were read{rest}."
            if stream.state is not Stream.ENDED:
                yield from self._whole(producer, stage)
                yield from self._stage(producer)

    def _whole(self, producer: str, stage: str) -> Iterator[str]:
        """What the topology says of an edge that holds everything back until its end."""
        if (producer, stage, "complete") in self._at.run.edges:
            key = f"pipeline.stages.{stage}.inputs.{producer}"
            yield f"{stage} takes {producer} `complete` ({key}): it starts at the end of that."

    def _others(self, record: StageRecord) -> str:
        running = [
            other.admitted.request_id
            for other in self._at.lifecycle.requests.values()
            if (place := other.places.get(record.process)) is not None and place.state is Stage.RUNNING
        ]
        if not running:
            return "none runs there"
        more = f" and {len(running) - NAMED} more" if len(running) > NAMED else ""
        return f"{len(running)} run there ({', '.join(running[:NAMED])}{more})"

    def _since(self, record: StageRecord) -> str:
        heard_ns = self._at.heard.at.get(self._uid, {}).get(record.process)
        return "" if heard_ns is None else f", last heard of {duration(self._at.now_ns - heard_ns)} before"

    def _unread(self, record: StageRecord) -> Iterator[str]:
        held = [h for h in self._at.ledger.live() if h.uid == self._uid and h.lease.owner == record.process]
        readers = sorted({h.reader for h in held if h.state in (LeaseState.GRANTED, LeaseState.LENT)})
        if readers:
            yield f"{len(held)} of the slots in its ring are not read by {_listed(readers)} yet."

    def _producers(self, stage: str) -> tuple[str, ...]:
        return tuple(p for p, consumer, _ in self._at.run.edges if consumer == stage and p != REQUEST)


def _listed(names: Iterable[str]) -> str:
    return " and ".join(names)
