"""Drives the live run's own Orchestrator with what a trace says that it heard, and compares what it decides.

What stages tell, admissions, cancellations, deadlines, deaths and the input rings' answers are inputs, given in the
recorded order under a clock that shows the recorded times; everything else from the control plane is a decision.
Starts no process and touches no payload.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.events import (
    CONTROL,
    ControlEvent,
    Event,
    MediaPut,
    OutputFinished,
    ProcessDead,
    ProcessNotStarted,
    ProcessStarted,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RunFinished,
    RunStarted,
    StageSubmitted,
)
from omni_cli.runtime.lifecycle import REQUEST_ENDED, STAGE_ENDED
from omni_cli.runtime.media_gate import MediaGate
from omni_cli.runtime.orchestrator import Orchestrator
from omni_cli.runtime.replicas import Start
from omni_cli.runtime.request import OmniRequest
from omni_cli.trace.codec import KINDS, TraceEvent
from omni_cli.trace.decisions import same, subject
from omni_cli.trace.script import Script
from omni_cli.trace.until import Until
from omni_cli.trace.why import LastHeard
from stages.errors import PayloadTooLarge
from stages.events import MessagePut, StepDone
from stages.lease import Lease
from stages.messages import REQUEST
from stages.payload import Payload, PayloadRef, Tensor

LATE_NS = 5_000_000_000  # by so much a busy loop may be late for a deadline
_NOT_OURS = (RunStarted, RunFinished, ProcessStarted)  # the launcher's, not the orchestrator's
_INPUTS = (ProcessStarted, ProcessNotStarted, ProcessDead, RequestAdmitted)  # they may come much later
_DECISIONS = frozenset(get_args(ControlEvent))
_TURNS = 512  # inputs, after which what would have been sent is thrown away
_MEDIA = Payload(tensors=(Tensor(name="media", dtype="uint8", shape=(0,), data=memoryview(b"")),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Recorded and decided are not the same. `line` counts from 1; one of the two may be missing (None).

    `after` is the line of the input that it follows, `cause` that input in words.
    """

    line: int
    t_ns: int
    uid: int | None
    recorded: Event | None
    decided: Event | None
    after: int
    cause: str
    note: str = ""


class Replay:
    """One pass over a trace. `divergences` grows as it goes; `decisions` counts what was decided as recorded."""

    def __init__(self, plan: ExecutionPlan, events: Iterable[TraceEvent]) -> None:
        self.script = Script(events)
        self.divergences: list[Divergence] = []
        self.decisions = 0
        self.inputs = 0
        self.broken = False  # the runtime itself raised: nothing can be said of what follows
        self.whole = False
        self.now_ns = 0
        self.first_ns: int | None = None  # of the first admission
        self.started: RunStarted | None = None
        self.names: dict[int, str] = {}  # of all requests so far
        self.uids: dict[str, int] = {}  # the latest request of each name
        self.entering: set[int] = set()  # admitted, not in their first stage, or not any more
        self.dead: set[str] = set()
        self.generations: dict[str, int] = {}  # of the latest life of each process that was started again
        self.heard = LastHeard()  # told of a story only, as the next
        self.consumers: dict[tuple[str, int], str] = {}  # by lease; a reader is not fixed while none lives
        self.orchestrator = Orchestrator(
            plan,
            clock=self._clock,
            listener=self._hear,
            media=MediaGate({stage.name: _InputRing(stage.name, self.script) for stage in plan.entries}),
            output_ports={f"{s.name}.{r.index}": _OutputRing() for s in plan.stages for r in s.replicas},
            on_chunk=lambda uid, chunk: None,
            on_end=lambda uid, end: None,
        )
        self._alarm_ns: int | None = None
        self._starts: set[tuple[str, int]] = set()  # ordered lives
        self._decided: list[Event] = []  # but not recorded, so far
        self._cause: tuple[int, TraceEvent | None] = (0, None)

    def steps(self) -> Iterator[Sequence[TraceEvent]]:
        """Takes in one input after the other; gives its line and those of what was decided on it."""
        while (head := self.script.head) is not None and not self.broken:
            self.script.passed.clear()
            try:
                self._take(head)
            except Exception as error:  # as in the engine: a fault of the runtime ends the run
                self.broken = True
                self._diverge(None, None, f"the orchestrator breaks: {type(error).__name__}: {error}")
            yield self.script.passed
        if self.whole and not self.broken:
            self.orchestrator.take_turns()
            self._settle()

    def run(self) -> Sequence[Divergence]:
        for _ in self.steps():
            pass
        return self.divergences

    def story(self, request_id: str | None, until: Until | None) -> Iterator[TraceEvent]:
        """Goes on to the point, or to the end, and gives what happens to the request meanwhile."""
        for lines in self.steps():
            uid = self.uids.get(request_id or "")
            for line in lines:
                self.heard(line.source, line.event)
                if isinstance(line.event, MessagePut) and (lease := line.event.message.lease) is not None:
                    self.consumers[lease.owner, lease.number] = line.event.message.consumer
            own = [line for line in lines if uid is not None and _about(line.event, uid)]
            yield from own
            start_ns = self.started.t_ns if self.started is not None else 0
            if until is not None:
                concerned = [*own, *(line for line in lines if _about(line.event, None))] if request_id else lines
                if until.here(concerned, self.script.head, start_ns):
                    return

    # what the orchestrator is given

    def _clock(self) -> int:
        """The time of the line that comes next, if it is a decision; while a timer runs out, when it was set to."""
        if self._alarm_ns is not None:
            return self._alarm_ns
        head = self.script.head
        decided = head is not None and head.source == CONTROL and not isinstance(head.event, _INPUTS)
        return head.event.t_ns if head is not None and decided else self.now_ns

    def _hear(self, source: str, event: Event) -> None:
        head = self.script.head
        if head is not None and head.source == source and (head.event is event or same(head.event, event)):
            self.script.pop()
            self.decisions += source == CONTROL
        elif head is not None and head.source == source == CONTROL and subject(head.event) == subject(event):
            self._diverge(head.event, event, "", self.script.line)
            self.script.pop()
        else:
            self._decided.append(event)
        if source == CONTROL and (
            isinstance(event, (RequestFailed, RequestCancelled))
            or (isinstance(event, StageSubmitted) and set(event.waits_for) <= {REQUEST})
        ):
            self.entering.discard(event.uid)

    # what the trace has

    def _take(self, head: TraceEvent) -> None:
        """One line, with all that the orchestrator decides on it. At the end of it, `head` has been passed."""
        self.inputs += 1
        self.now_ns = max(self.now_ns, head.event.t_ns)
        if not self.inputs % _TURNS:
            self.orchestrator.take_turns(enter=False)
        at, due_ns = self.script.line, self.orchestrator.deadlines.next_ns()
        if due_ns is not None and self.now_ns > due_ns + LATE_NS:
            self._settle()
            self._cause = (at, None)
            self._expire(self.now_ns)  # whatever the trace says
            if self.script.line != at:
                return
        if head.source != CONTROL and type(head.event) in _DECISIONS:
            self._settle()  # no process can say that
        elif head.source != CONTROL:
            self._settle()
            self._cause = (at, head)
            if self.orchestrator.replicas.speaks(head.source, self.generations.get(head.source, 0)):
                self.orchestrator.hear(head.source, head.event)
        else:
            self._take_control(head)
        if self.script.line == at:
            self._pass(head)

    def _pass(self, head: TraceEvent) -> None:
        """A line that nothing has come of: the launcher's, or one that the orchestrator does not have."""
        event, at = head.event, self.script.line
        self.script.pop()
        if head.source != CONTROL:
            self._diverge(event, None, f"{head.source} is not heard: it is dead, or cannot say that")
        elif isinstance(event, RunStarted):
            self.started = event
        elif isinstance(event, RunFinished):
            self.whole = True
        elif not isinstance(event, _NOT_OURS) and not (isinstance(event, ProcessDead) and event.expected):
            twin = next((other for other in self._decided if same(event, other)), None)
            if twin is None:
                self._diverge(event, None, at=at)
            else:
                self._decided.remove(twin)
                self._diverge(event, twin, "in another order", at)

    def _take_control(self, head: TraceEvent) -> None:
        """Whether it is an input, or the first decision on one that the trace does not name."""
        event = head.event
        if isinstance(event, _NOT_OURS) and not (isinstance(event, ProcessStarted) and event.generation):
            return
        if any(same(event, other) for other in self._decided):
            return
        given = self._input(event)
        if given is not None:
            self._settle()
            self._cause = (self.script.line, head)
            given()

    def _input(self, event: Event) -> Callable[[], object] | None:
        orchestrator = self.orchestrator
        match event:
            case ProcessDead(expected=False):
                self.dead.add(event.process)
                self.entering |= self._entered_by(event.process)  # unless they fail now
                return lambda: orchestrator.died(event.process, event.cause)
            case ProcessStarted() | ProcessNotStarted():
                return lambda: self._begin(event)
            case RequestAdmitted():
                return lambda: self._admit(event)
            case OutputFinished(outcome="cancelled") | RequestCancelled():
                end = self.script.ahead(RequestCancelled, event.uid)
                return lambda: orchestrator.cancel(event.uid, end.reason if end else "")
            case OutputFinished(outcome="failed") | RequestFailed() if self._is_late(event.uid):
                return lambda: self._expire(event.t_ns)
            case MediaPut() | StageSubmitted():  # perhaps once more
                return orchestrator.take_turns
            case OutputFinished() | RequestFailed() if event.uid in self.entering:
                return orchestrator.take_turns
        return None

    def _entered_by(self, process: str) -> set[int]:
        """The requests in a first stage's process: they may enter it again."""
        requests = self.orchestrator.lifecycle.requests.items()
        places = ((uid, record.places.get(process)) for uid, record in requests if record.state not in REQUEST_ENDED)
        return {uid for uid, at in places if at and at.state not in STAGE_ENDED and set(at.waits_for) <= {REQUEST}}

    def _begin(self, event: ProcessStarted | ProcessNotStarted) -> None:
        """Another life, which has to be ordered by now: of that decision only the outcome is recorded."""
        process, generation = event.process, event.generation
        orders = self.orchestrator.replicas.take_orders()
        self._starts |= {(order.process, order.generation) for order in orders if isinstance(order, Start)}
        if (process, generation) not in self._starts:
            self._diverge(event, None, f"{process} is not to be started again, or not yet")
        elif isinstance(event, ProcessNotStarted):
            self.orchestrator.not_started(process, generation, event.cause, final=event.final)
        else:
            self.dead.discard(process)
            self.generations[process] = generation
            self.orchestrator.replicas.started(process, generation)

    def _is_late(self, uid: int) -> bool:
        """Whether the request fails next because its time is up; a trace that ends before it says why may mean that."""
        failed = self.script.ahead(RequestFailed, uid)
        return uid not in self.entering if failed is None else failed.error.kind == "DeadlineExceeded"

    def _admit(self, event: RequestAdmitted) -> None:
        self.first_ns = self.first_ns or event.t_ns
        self.entering.add(event.uid)
        self.names[event.uid], self.uids[event.request_id] = event.request_id, event.uid
        self.orchestrator.admit(
            event.uid,
            OmniRequest(
                request_id=event.request_id,
                seed=event.seed,
                conversation=(),
                outputs=event.outputs,
                media=_MEDIA if event.media else Payload(),
                timeout_s=event.timeout_s,
                traceparent=event.traceparent,
            ),
        )

    def _expire(self, t_ns: int) -> None:
        """The timer runs out, if there is one that is due by then."""
        due_ns = self.orchestrator.deadlines.next_ns()
        if due_ns is not None and due_ns <= t_ns:
            self._alarm_ns = due_ns
            try:
                self.orchestrator.expire()
            finally:
                self._alarm_ns = None

    # what is not the same

    def _settle(self) -> None:
        """Before the next input: what has found no counterpart by now has none."""
        for decided in self._decided:
            self._diverge(None, decided)
        self._decided.clear()

    def _diverge(self, recorded: Event | None, decided: Event | None, note: str = "", at: int | None = None) -> None:
        after, cause = self._cause
        event = recorded or decided
        self.divergences.append(
            Divergence(
                line=(after if at is None else at) + 1,
                t_ns=event.t_ns if event is not None else self.now_ns,
                uid=getattr(event, "uid", None),
                recorded=recorded,
                decided=decided,
                after=after + 1,
                cause="the end of its time" if cause is None else f"{KINDS[type(cause.event)]} from {cause.source}",
                note=note,
            )
        )


def _about(event: Event, uid: int | None) -> bool:
    """None: about no request, as of a process."""
    if isinstance(event, StepDone):
        return any(row.uid == uid for row in event.rows)
    return getattr(event, "uid", None) == uid


class _InputRing:
    """Has room when the trace says that it had."""

    def __init__(self, stage: str, script: Script) -> None:
        self._stage = stage
        self._script = script

    def put(self, pieces: Sequence[Payload]) -> tuple[PayloadRef, Lease | None] | None:
        for event in self._script.decided_ahead():
            if isinstance(event, MediaPut) and event.consumer == self._stage:
                return PayloadRef(tensors=(), meta=(), nbytes=event.nbytes), event.lease
            if isinstance(event, RequestFailed) and event.error.kind == PayloadTooLarge.__name__:
                raise PayloadTooLarge(event.error.message)
            if not isinstance(event, MediaPut | OutputFinished):
                return None
        return None

    def reclaim(self, lease: Lease) -> None:
        """The trace says when there is room again."""


class _OutputRing:
    """Payloads are not in a trace, and nobody is there to hear them."""

    def get(self, ref: PayloadRef) -> Payload:
        return Payload()
