"""Audits the processes: started, ready, dead, and that only a live process speaks, works and is given work."""

from collections.abc import Iterator
from dataclasses import dataclass

from omni_cli.runtime.events import (
    CONTROL,
    ProcessDead,
    ProcessNotStarted,
    ProcessStarted,
    RequestAdmitted,
    StageSubmitted,
)
from omni_cli.runtime.lifecycle import PROCESS, IllegalTransition, Process, advance
from omni_cli.trace.audit import Audit
from omni_cli.trace.codec import KINDS, TraceEvent
from stages.events import MessagePut, ProcessReady, StepDone


@dataclass(slots=True)
class _Life:
    state: Process = Process.ABSENT
    started: ProcessStarted | None = None
    generation: int = -1
    steps: int = 0
    step_ns: int = 0


class ProcessAudit(Audit):
    """Steps are numbered from 0 in each life of a process; a restart has a higher generation."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}

    def see(self, line: TraceEvent) -> Iterator[str]:
        event = line.event
        if isinstance(event, ProcessStarted):
            yield from self._started(event)
        elif isinstance(event, ProcessNotStarted):
            yield from self._move(event.process, "not started")
        elif isinstance(event, ProcessReady):
            yield from self._ready(line.source, event)
        elif isinstance(event, ProcessDead):
            yield from self._move(event.process, "dead")
        elif line.source != CONTROL:
            life = self._lives.get(line.source) or _Life()
            if life.state is not Process.READY:
                yield f"{KINDS[type(event)]} from {line.source}, which is {life.state}"
            if isinstance(event, StepDone):
                yield from self._step(line.source, life, event)
            lease = event.message.lease if isinstance(event, MessagePut) else getattr(event, "lease", None)
            if lease is not None and lease.owner == line.source and lease.generation != life.generation:
                yield f"{line.source} puts as generation {lease.generation}, but it is generation {life.generation}"
        elif isinstance(event, StageSubmitted):
            state = (self._lives.get(event.process) or _Life()).state
            if state is not Process.READY or event.process.rpartition(".")[0] != event.stage:
                yield f"request {event.uid} was given to {event.process} for {event.stage}, which is {state}"
        elif isinstance(event, RequestAdmitted):
            late = [name for name, life in self._lives.items() if life.state is Process.STARTED and not life.generation]
            if late or not self._lives:
                yield f"request {event.uid} was admitted before {', '.join(late) or 'any process'} was ready"

    def end(self) -> Iterator[str]:
        for name, life in self._lives.items():
            if life.state is not Process.DEAD:
                yield f"{name} never ended: it is {life.state} at the end"

    def _move(self, name: str, event: str) -> Iterator[str]:
        life = self._lives.setdefault(name, _Life())
        try:
            life.state = advance(PROCESS, life.state, event, None, "process {}", name)
        except IllegalTransition as error:
            yield str(error)

    def _started(self, event: ProcessStarted) -> Iterator[str]:
        yield from self._move(event.process, "started")
        life = self._lives[event.process]
        if event.generation <= life.generation:
            yield f"{event.process} started again as generation {event.generation}, after {life.generation}"
        life.started, life.generation, life.steps, life.step_ns = event, event.generation, 0, 0

    def _ready(self, name: str, event: ProcessReady) -> Iterator[str]:
        yield from self._move(name, "ready")
        started = self._lives[name].started
        if started is not None and started.pid != event.pid:
            yield f"{name} is ready as pid {event.pid}, but pid {started.pid} was started"
        if started is not None and event.t_ns < started.t_ns:
            yield f"{name} was ready {started.t_ns - event.t_ns} ns before it was started"

    def _step(self, name: str, life: _Life, event: StepDone) -> Iterator[str]:
        if event.index != life.steps:
            yield f"step {event.index} of {name} where step {life.steps} is due"
        if event.t_ns < life.step_ns:
            yield f"step {event.index} of {name} started {life.step_ns - event.t_ns} ns before the step before it"
        if len({row.uid for row in event.rows}) != len(event.rows) or not event.rows:
            yield f"step {event.index} of {name} has no rows, or a request twice"
        life.steps = event.index + 1
        life.step_ns = event.t_ns
