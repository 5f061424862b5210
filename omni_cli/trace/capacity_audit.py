"""Audits what a process holds: steps within its capacity, every token computed once, nothing left when it is idle."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from omni_cli.runtime.events import CONTROL, ProcessDead, ProcessStarted, StageSubmitted
from omni_cli.trace.audit import Audit
from omni_cli.trace.codec import TraceEvent
from stages.events import (
    LeaseReleased,
    ProcessReady,
    StageCancelled,
    StageFailed,
    StageFinished,
    StageIdle,
    StepDone,
)

_ENDS = (StageFinished, StageFailed, StageCancelled)


@dataclass(slots=True)
class _Held:
    """One life of a process. `given` are its requests as the control plane knows them, `told` those that it has spoken
    of. `worked`: a request has ended since it was idle last; `due`: so has the last one, and it must say so now."""

    facts: Mapping[str, int] = field(default_factory=dict)
    given: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    computed: dict[int, int] = field(default_factory=dict)
    worked: bool = False
    due: bool = False


class CapacityAudit(Audit):
    """Holds steps against what the process said when it was ready (`max_batch`, `step_tokens`, `kv_blocks`)."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = defaultdict(_Held)

    def see(self, line: TraceEvent) -> Iterator[str]:
        event = line.event
        if line.source == CONTROL:
            if isinstance(event, ProcessStarted):
                self._held[event.process] = _Held()
            elif isinstance(event, ProcessDead):
                held = self._held.pop(event.process, None)
                if held is not None and held.due and event.cause == "exit code 0":
                    yield f"{event.process} never said that it was idle"
            elif isinstance(event, StageSubmitted):
                held = self._held[event.process]
                if held.due:
                    yield f"request {event.uid} was given to {event.process}, which had not said that it was idle"
                    held.due = False
                held.given.add(event.uid)
        elif isinstance(event, _ENDS):
            held = self._held[line.source]
            held.told.discard(event.uid)
            held.computed.pop(event.uid, None)
            if event.uid in held.given:
                held.given.remove(event.uid)
                held.worked = True
                held.due = not held.given
        elif isinstance(event, ProcessReady):
            self._held[line.source].facts = {name: int(value) for name, value in event.facts if value.isdecimal()}
        elif isinstance(event, StageIdle):
            yield from self._idle(line.source, self._held[line.source], event)
        elif not isinstance(event, LeaseReleased):  # a late message is given back at any time
            held = self._held[line.source]
            if held.due:
                yield f"{line.source} goes on without having said that it was idle"
                held.due = False
            if isinstance(event, StepDone):
                yield from self._step(line.source, held, event)
                held.told |= held.given.intersection(row.uid for row in event.rows)
            elif (uid := getattr(event, "uid", None)) in held.given:
                held.told.add(uid)

    def _idle(self, process: str, held: _Held, event: StageIdle) -> Iterator[str]:
        if held.told or not held.worked:
            doing = f"has requests {', '.join(map(str, sorted(held.told)))}" if held.told else "had nothing to do"
            yield f"{process} says that it is idle now, but it {doing}"
        left = [f"{name} is {value}" for name, value in event.gauges if value]
        if left:
            yield f"{process} is idle, but {', '.join(left)}"
        held.worked = held.due = False

    def _step(self, process: str, held: _Held, event: StepDone) -> Iterator[str]:
        where, facts = f"step {event.index} of {process}", held.facts
        for uid in event.preempted:
            held.computed[uid] = 0
        for row in event.rows:
            done = held.computed.get(row.uid, 0)
            if row.start != done:
                yield f"{where} computes request {row.uid} from token {row.start}, but {done} of it are computed"
            held.computed[row.uid] = row.start + row.tokens
            if row.units > 1 and row.phase != "forward":
                yield f"{where} does {row.units} units of request {row.uid} at once, in a {row.phase} row"
        tokens = sum(row.tokens for row in event.rows)
        for name, count in (("max_batch", len(event.rows)), ("step_tokens", tokens), ("kv_blocks", event.kv_blocks)):
            if count > facts.get(name, count):
                yield f"{where} has {count}, more than {name}={facts[name]}"
        if size := facts.get("kv_block_tokens"):
            needed = sum(-(-(row.start + row.tokens) // size) for row in event.rows)
            if event.kv_blocks < needed:
                yield f"{where} works on {needed} KV blocks of {event.kv_blocks}"
