"""Turns a trace into numbers: per request and stage queue, wait, run and hand-off; per output first and last piece.

All of them come from what the stages stamped. In a stage, queue + wait + run + stall is the time from submission to
end, to the nanosecond. Works on traces of failed and killed runs: what has no end gets the end of the trace.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from omni_cli.runtime.events import (
    Event,
    MediaPut,
    OutputFinished,
    ProcessDead,
    ProcessStarted,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RunFinished,
    RunStarted,
    StageSubmitted,
)
from omni_cli.trace.batches import Batches
from omni_cli.trace.codec import TraceEvent
from omni_cli.trace.frame import happened_ns
from stages.errors import ErrorInfo
from stages.events import (
    InputReady,
    MessageGot,
    MessagePut,
    OutputProduced,
    ProcessReady,
    Scheduled,
    StageCancelled,
    StageFailed,
    StageFinished,
    StepDone,
)
from stages.messages import REQUEST
from stages.payload import Payload, PayloadRef

OPEN = "open"  # the status of what has no end in the trace
QUEUE, WAIT, RUN, STALL = "queue", "wait", "run", "stall"


class Phase(NamedTuple):
    """What was going on from `start_ns` to `end_ns`: QUEUE, WAIT, RUN or STALL."""

    kind: str
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class StageSpan:
    """A request in one stage. Times are in ns of the run's clock; None where it never came so far.

    `queue_ns` until the input was ready, `wait_ns` until the first step, `run_ns` in steps (each counted whole,
    whoever shares it), `stall_ns` between steps.
    """

    stage: str
    process: str
    submitted_ns: int
    end_ns: int
    ready_ns: int | None = None
    scheduled_ns: int | None = None
    status: str = OPEN
    steps: list[tuple[int, int]] = field(default_factory=list)
    units: int = 0
    attempt: int = 1  # more than 1: run again after the death of a replica; the rest is of this attempt

    @property
    def queue_ns(self) -> int:
        return (self.end_ns if self.ready_ns is None else self.ready_ns) - self.submitted_ns

    @property
    def wait_ns(self) -> int:
        if self.ready_ns is None:
            return 0
        return (self.end_ns if self.scheduled_ns is None else self.scheduled_ns) - self.ready_ns

    @property
    def run_ns(self) -> int:
        """Where steps overlap, their time counts once."""
        done_ns, total_ns = 0, 0
        for start, end in sorted(self.steps):
            total_ns += max(0, end - max(start, done_ns))
            done_ns = max(done_ns, end)
        return total_ns

    @property
    def stall_ns(self) -> int:
        return self.total_ns - self.queue_ns - self.wait_ns - self.run_ns

    @property
    def total_ns(self) -> int:
        return self.end_ns - self.submitted_ns

    def phases(self) -> Iterator[Phase]:
        """Of which there were any; the steps are RUN, one by one, and STALL goes on behind them."""
        yield Phase(QUEUE, self.submitted_ns, self.submitted_ns + self.queue_ns)
        if self.ready_ns is not None:
            yield Phase(WAIT, self.ready_ns, self.ready_ns + self.wait_ns)
        for start_ns, end_ns in self.steps:
            yield Phase(RUN, start_ns, end_ns)
        if self.scheduled_ns is not None:
            yield Phase(STALL, self.scheduled_ns, self.end_ns)


@dataclass(slots=True)
class EdgeFlow:
    """The stream of one request over one edge. `hand_off_ns` sums put to got over the `got` messages, `flights` has
    the (put, got) of each."""

    producer: str
    consumer: str
    messages: int = 0
    nbytes: int = 0
    got: int = 0
    hand_off_ns: int = 0
    pending: dict[int, int] = field(default_factory=dict)
    flights: list[tuple[int, int]] = field(default_factory=list)

    def put(self, seq: int, nbytes: int, now: int) -> None:
        self.messages += 1
        self.nbytes += nbytes
        self.pending[seq] = now

    def take(self, seq: int, now: int) -> int | None:
        """How long the hand-off of this message took, in ns; None if it was not put."""
        put_ns = self.pending.pop(seq, None)
        if put_ns is None:
            return None
        self.got += 1
        self.hand_off_ns += now - put_ns
        self.flights.append((put_ns, now))
        return now - put_ns

    @property
    def mean_hand_off_ns(self) -> int | None:
        return self.hand_off_ns // self.got if self.got else None


@dataclass(slots=True)
class OutputFlow:
    """A final output. `first_ns` and `last_ns` are of the pieces that hold something; `audio_s` is the playing time of
    audio."""

    modality: str
    status: str = OPEN
    first_ns: int | None = None
    last_ns: int | None = None
    units: int = 0
    chunks: int = 0
    nbytes: int = 0
    audio_s: float = 0.0

    def take(self, event: OutputProduced) -> bool:
        """Counts a piece; whether it holds something."""
        self.units += event.units
        self.chunks += 1
        self.nbytes += event.ref.nbytes if event.ref is not None else len(event.text.encode(errors="replace"))
        sounds = type_of(event.modality) == "audio"
        plays_s = duration_s(event.ref) if event.ref is not None and sounds else 0.0
        self.audio_s += plays_s
        holds = plays_s > 0 if sounds else event.ref is not None or bool(event.text)
        if holds:
            self.first_ns = event.t_ns if self.first_ns is None else self.first_ns
            self.last_ns = event.t_ns
        return holds


@dataclass(slots=True)
class RequestSummary:
    """One request from admission to end (its caller's; a stage may end later)."""

    uid: int
    request_id: str
    admitted_ns: int
    end_ns: int
    status: str = OPEN
    error: ErrorInfo | None = None
    reason: str = ""
    traceparent: str | None = None
    stages: dict[str, StageSpan] = field(default_factory=dict)
    edges: dict[tuple[str, str], EdgeFlow] = field(default_factory=dict)
    outputs: dict[str, OutputFlow] = field(default_factory=dict)

    @classmethod
    def admitted(cls, event: RequestAdmitted) -> "RequestSummary":
        return cls(
            uid=event.uid,
            request_id=event.request_id,
            admitted_ns=event.t_ns,
            end_ns=event.t_ns,
            traceparent=event.traceparent,
            outputs={modality: OutputFlow(modality=modality) for modality in event.outputs},
        )

    def edge(self, producer: str, consumer: str) -> EdgeFlow:
        return self.edges.setdefault((producer, consumer), EdgeFlow(producer=producer, consumer=consumer))

    @property
    def total_ns(self) -> int:
        return self.end_ns - self.admitted_ns

    @property
    def ttft_ns(self) -> int | None:
        """Admission to the first text token."""
        return self.first_ns("text")

    @property
    def ttfa_ns(self) -> int | None:
        """Admission to the first audio sample, of whichever audio output is first."""
        return self.first_ns("audio")

    def rtf(self, output: OutputFlow) -> float | None:
        """(Last piece - admission) / playing time; below 1 is faster than the sound lasts. None without sound."""
        if output.last_ns is None or not output.audio_s:
            return None
        return (output.last_ns - self.admitted_ns) / 1e9 / output.audio_s

    def lead_ns(self, stage: str) -> int | None:
        """How long before the last step of the request's first stage the first step of `stage` began; negative where it
        came later. None where one of them has no step."""
        first, then = next(iter(self.stages.values()), None), self.stages.get(stage)
        if first is None or then is None or first is then or not (first.steps and then.steps):
            return None
        return first.steps[-1][0] - then.steps[0][0]

    def first_ns(self, kind: str) -> int | None:
        """Admission to the first piece that holds something, of whichever output of this type is first."""
        first = [o.first_ns for o in self.outputs.values() if type_of(o.modality) == kind and o.first_ns is not None]
        return min(first) - self.admitted_ns if first else None


@dataclass(slots=True)
class ProcessSummary:
    """One life of a process. `facts` are what it said of itself when it was ready."""

    process: str
    generation: int
    pid: int
    started_ns: int
    ready_ns: int | None = None
    dead_ns: int | None = None
    expected: bool = False
    cause: str = ""
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class RunSummary:
    """A whole trace. `whole` is False if it stops before the end of the run."""

    started: RunStarted | None = None
    whole: bool = False
    first_ns: int = 0
    last_ns: int = 0
    requests: dict[int, RequestSummary] = field(default_factory=dict)
    stages: dict[str, Batches] = field(default_factory=dict)
    processes: list[ProcessSummary] = field(default_factory=list)


def type_of(modality: str) -> str:
    """`audio` for `audio_mix`: a label tells several outputs of one type apart."""
    return modality.partition("_")[0]


def summarise(events: Iterable[TraceEvent]) -> RunSummary:
    """Never judges: events that fit nothing are left out (`check` reports them)."""
    fold = _Fold()
    for line in events:
        fold.see(line.source, line.event)
    return fold.close()


class _Fold:
    def __init__(self) -> None:
        self.run = RunSummary()
        self._admitted_ns: dict[int, int] = {}

    def see(self, source: str, event: Event) -> None:
        now = happened_ns(event)
        self.run.first_ns = self.run.first_ns or now
        self.run.last_ns = max(self.run.last_ns, now)
        if isinstance(event, StepDone):
            stage = source.rpartition(".")[0]
            self.run.stages.setdefault(stage, Batches(stage)).take(event, self._admitted_ns)
            for row in event.rows:
                span = self._span(row.uid, source)
                if span is not None:
                    span.steps.append((event.t_ns, event.end_ns))
                    span.units += row.units
            return
        self._run(source, event)
        request = self.run.requests.get(getattr(event, "uid", -1))
        if request is not None:
            self._control(request, event)
            self._stage(request, source, event)
            self._flow(request, source, event)

    def close(self) -> RunSummary:
        for request in self.run.requests.values():
            if request.status == OPEN:
                request.end_ns = self.run.last_ns
            for span in request.stages.values():
                if span.status == OPEN:
                    span.end_ns = self.run.last_ns
        return self.run

    def _span(self, uid: int, source: str) -> StageSpan | None:
        request = self.run.requests.get(uid)
        span = request.stages.get(source.rpartition(".")[0]) if request is not None else None
        return span if span is not None and span.process == source else None

    def _run(self, source: str, event: object) -> None:
        if isinstance(event, RunStarted):
            self.run.started = event
        elif isinstance(event, RunFinished):
            self.run.whole = True
        elif isinstance(event, ProcessStarted):
            self.run.processes.append(
                ProcessSummary(process=event.process, generation=event.generation, pid=event.pid, started_ns=event.t_ns)
            )
        elif isinstance(event, ProcessReady):
            process = self._process(source)
            if process is not None:
                process.ready_ns, process.facts = event.t_ns, event.facts
        elif isinstance(event, ProcessDead):
            self._process_dead(event)
        elif isinstance(event, RequestAdmitted):
            self._admitted_ns[event.uid] = event.t_ns
            self.run.requests[event.uid] = RequestSummary.admitted(event)

    def _process(self, name: str) -> ProcessSummary | None:
        return next((p for p in reversed(self.run.processes) if p.process == name), None)

    def _process_dead(self, event: ProcessDead) -> None:
        process = self._process(event.process)
        if process is not None:
            process.dead_ns, process.expected, process.cause = event.t_ns, event.expected, event.cause
        for request in self.run.requests.values():
            for span in request.stages.values():
                if span.process == event.process and span.status == OPEN:
                    span.status, span.end_ns = "lost", event.t_ns

    def _control(self, request: RequestSummary, event: object) -> None:
        if isinstance(event, StageSubmitted):
            before = request.stages.get(event.stage)
            request.stages[event.stage] = StageSpan(
                attempt=1 if before is None else before.attempt + 1,
                stage=event.stage,
                process=event.process,
                submitted_ns=event.t_ns,
                end_ns=event.t_ns,
            )
        elif isinstance(event, OutputFinished) and event.modality in request.outputs:
            request.outputs[event.modality].status = event.outcome
        elif isinstance(event, RequestFinished):
            request.status, request.end_ns = "finished", event.t_ns
        elif isinstance(event, RequestFailed):
            request.status, request.end_ns, request.error = "failed", event.t_ns, event.error
        elif isinstance(event, RequestCancelled):
            request.status, request.end_ns, request.reason = "cancelled", event.t_ns, event.reason

    def _stage(self, request: RequestSummary, source: str, event: object) -> None:
        span = self._span(request.uid, source)
        if span is None:
            return
        if isinstance(event, InputReady):
            span.ready_ns = event.t_ns
        elif isinstance(event, Scheduled):
            span.scheduled_ns = event.t_ns
        elif isinstance(event, StageFinished):
            span.status, span.end_ns = "finished", event.t_ns
        elif isinstance(event, StageFailed):
            span.status, span.end_ns = "failed", event.t_ns
        elif isinstance(event, StageCancelled) and span.status == OPEN:
            span.status, span.end_ns = "cancelled", event.t_ns

    def _flow(self, request: RequestSummary, source: str, event: object) -> None:
        if isinstance(event, MessagePut):
            message = event.message
            nbytes = message.ref.nbytes if message.ref is not None else 0
            request.edge(message.producer, message.consumer).put(message.seq, nbytes, event.t_ns)
        elif isinstance(event, MediaPut):
            request.edge(REQUEST, event.consumer).put(0, event.nbytes, event.t_ns)
        elif isinstance(event, MessageGot):
            edge = request.edges.get((event.producer, source.rpartition(".")[0]))
            if edge is not None:
                edge.take(event.seq, event.t_ns)
        elif isinstance(event, OutputProduced) and event.modality in request.outputs:
            request.outputs[event.modality].take(event)


def duration_s(ref: PayloadRef | Payload) -> float:
    """Mono audio of any accepted shape, (n,), (1, n), (1, 1, n) or (n, 1): n samples."""
    rate = dict(ref.meta).get("sample_rate_hz")
    samples = [max(spec.shape) for spec in ref.tensors if spec.name == "audio" and spec.shape and 0 not in spec.shape]
    return sum(samples) / rate if isinstance(rate, (int, float)) and rate > 0 else 0.0
