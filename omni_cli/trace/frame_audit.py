"""Audits what holds for every line, whatever it says: first and last event, ordinals, sources, the clock."""

from collections.abc import Iterator
from typing import get_args

from omni_cli.runtime.events import CONTROL, ControlEvent, Event, RequestAdmitted, RunFinished, RunStarted
from omni_cli.trace.audit import Audit
from omni_cli.trace.codec import KINDS, TraceEvent
from omni_cli.trace.frame import TRACEPARENT, happened_ns, wall_ns
from stages.events import StepDone

_CONTROL_EVENTS = frozenset(get_args(ControlEvent))


class FrameAudit(Audit):
    """One clock for all processes: a source's events are in the order of their times, and the control plane, which
    stamps as it decides, never decides before what it has already taken in."""

    def __init__(self) -> None:
        self._run: RunStarted | None = None
        self._finished: RunFinished | None = None
        self._lines = 0
        self._source_ns: dict[str, int] = {}
        self._latest_ns = 0

    def see(self, line: TraceEvent) -> Iterator[str]:
        event = line.event
        if line.ordinal != self._lines:
            yield f"its ordinal is {line.ordinal}, but {self._lines} events precede it: the trace lacks or repeats some"
        source = line.source
        if self._finished is not None:
            yield f"{KINDS[type(event)]} after run_finished"
        if (type(event) in _CONTROL_EVENTS) != (source == CONTROL):
            yield f"{KINDS[type(event)]} cannot come from {source}"
        if source == CONTROL:
            yield from self._frame(event)
        elif not self._lines:
            yield f"the first event is {KINDS[type(event)]}, not run_started"
        elif self._run is not None and source.rpartition(".")[0] not in self._run.stages:
            yield f"{source} is not a process of this run"
        now = happened_ns(event)
        if isinstance(event, StepDone) and event.end_ns < event.t_ns:
            yield f"the step ends {event.t_ns - event.end_ns} ns before it starts"
        before = self._latest_ns if source == CONTROL else self._source_ns.get(source, 0)
        if now < before:
            whom = "what the control plane had taken in" if source == CONTROL else f"the last event of {source}"
            yield f"{KINDS[type(event)]} from {source} happened {before - now} ns before {whom}"
        else:
            self._source_ns[source] = now
        if now > self._latest_ns:
            self._latest_ns = now
        self._lines += 1

    def _frame(self, event: Event) -> Iterator[str]:
        if isinstance(event, RunStarted) == (self._lines > 0):
            yield "run_started twice" if self._lines else f"the first event is {KINDS[type(event)]}, not run_started"
        if isinstance(event, RunStarted):
            self._run = self._run or event
            try:
                wall_ns(event.wall_time)
            except (ValueError, OverflowError):
                yield f"wall_time is {event.wall_time!r}, no time of ISO 8601"
        if isinstance(event, RequestAdmitted) and event.traceparent and not TRACEPARENT.fullmatch(event.traceparent):
            yield f"traceparent is {event.traceparent!r}, none as the W3C writes it"
        if isinstance(event, RunFinished):
            self._finished = event
            if event.events != self._lines:
                yield f"run_finished counts {event.events} events before it, the trace has {self._lines}"
