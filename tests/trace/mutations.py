"""Seeded damage to a trace: one event dropped, doubled, swapped with another, or given to another owner."""

import random
from dataclasses import dataclass, fields, replace

from omni_cli.runtime.events import CONTROL, ProcessDead, ProcessStarted, RunFinished, RunStarted, StageSubmitted
from omni_cli.trace.codec import TraceEvent
from stages.events import (
    MessageGot,
    ProcessReady,
    Scheduled,
    StageCancelled,
    StageFailed,
    StageFinished,
    StageIdle,
    StepDone,
)
from stages.lease import Lease

KINDS = ("drop", "double", "swap", "owner")


@dataclass(frozen=True)
class Mutation:
    """The damaged trace, and what was done at which places."""

    kind: str
    places: tuple[int, ...]
    trace: list[TraceEvent]
    said: str


def mutate(trace: list[TraceEvent], kind: str, rng: random.Random) -> Mutation:
    i, j = sorted(rng.sample(range(len(trace)), 2))
    if kind == "drop":
        return Mutation(kind, (i,), trace[:i] + trace[i + 1 :], f"drop {trace[i]}")
    if kind == "double":
        return Mutation(kind, (i, j), [*trace[:j], trace[i], *trace[j:]], f"double {trace[i]}")
    if kind == "swap":
        swapped = [*trace[:i], trace[j], *trace[i + 1 : j], trace[i], *trace[j + 1 :]]
        return Mutation(kind, (i, j), swapped, f"swap {trace[i]} and {trace[j]}")
    place, given = give_away(trace, rng)
    return Mutation(kind, (place,), [*trace[:place], given, *trace[place + 1 :]], f"{trace[place]} becomes {given}")


def give_away(trace: list[TraceEvent], rng: random.Random) -> tuple[int, TraceEvent]:
    """Some event as another source, request, process or lease would have it."""
    sources = sorted({line.source for line in trace})
    uids = sorted({uid for line in trace if (uid := getattr(line.event, "uid", None)) is not None})
    uids.append(uids[-1] + 1)
    while True:
        place = rng.randrange(len(trace))
        line = trace[place]
        changes = [replace(line, source=rng.choice([s for s in sources if s != line.source]))]
        for field in fields(line.event):
            value = getattr(line.event, field.name)
            other: object = None
            if field.name == "uid":
                other = rng.choice([uid for uid in uids if uid != value])
            elif field.name in ("process", "reader"):
                other = rng.choice([s for s in sources if s not in (value, "omni")])
            elif isinstance(value, Lease):
                other = rng.choice([replace(value, number=value.number + 1), replace(value, owner=f"{value.owner}1")])
            elif isinstance(line.event, StepDone) and field.name == "rows":
                row = rng.randrange(len(value))
                stranger = replace(value[row], uid=rng.choice([uid for uid in uids if uid != value[row].uid]))
                other = (*value[:row], stranger, *value[row + 1 :])
            if other is not None:
                changes.append(replace(line, event=replace(line.event, **{field.name: other})))
        return place, rng.choice(changes)


def is_decision(line: TraceEvent) -> bool:
    """Whether the orchestrator says it, not a stage and not the launcher."""
    launched = isinstance(line.event, RunStarted | RunFinished | ProcessStarted)
    stopped = isinstance(line.event, ProcessDead) and line.event.expected
    return line.source == CONTROL and not launched and not stopped


def sources_of(lines: list[TraceEvent]) -> set[str]:
    return {line.source for line in lines}


def only_ordinals_show(mutation: Mutation, trace: list[TraceEvent]) -> bool:
    """Whether the damaged trace tells of a run that may have been: what docs/traces.md lists."""
    line, rest = trace[mutation.places[0]], trace[mutation.places[0] + 1 :]
    event = line.event
    if mutation.kind == "swap":
        i, j = mutation.places
        other = trace[j]
        if line.source == other.source:  # two requests' first steps are one step
            return (
                isinstance(event, Scheduled) and isinstance(other.event, Scheduled) and event.t_ns == other.event.t_ns
            )
        # each source tells the same story; they were heard in another order
        return line.source not in sources_of(trace[i + 1 : j + 1]) and other.source not in sources_of(trace[i:j])
    if mutation.kind == "drop" and isinstance(event, MessageGot):
        stream = (line.source, event.uid, event.producer)
        later = [other for other in rest if isinstance(other.event, MessageGot)]
        return stream not in [(other.source, other.event.uid, other.event.producer) for other in later]
    if mutation.kind == "drop" and isinstance(event, StepDone):
        death = next(
            (n for n, e in enumerate(rest) if isinstance(e.event, ProcessDead) and e.event.process == line.source)
        )
        told = [other.event for other in rest[:death] if other.source == line.source]
        ended = {other.uid for other in told if isinstance(other, StageFinished)}
        return not any(isinstance(other, StepDone) for other in told) and not ended & {row.uid for row in event.rows}
    if mutation.kind == "drop" and isinstance(event, StageIdle):
        return had_more(trace[: mutation.places[0]], line.source) or was_killed(rest, line.source)
    if mutation.kind == "drop" and isinstance(event, ProcessReady):
        return line.source not in sources_of(rest)  # started again, and stopped before it was needed
    return False


def had_more(lines: list[TraceEvent], process: str) -> bool:
    """Whether a request was on its way to a process that was idle: it may as well have been there already."""
    given: set[int] = set()
    for line in lines:
        if isinstance(line.event, StageSubmitted) and line.event.process == process:
            given.add(line.event.uid)
        elif line.source == process and isinstance(line.event, StageFinished | StageFailed | StageCancelled):
            given.discard(line.event.uid)
    return bool(given)


def was_killed(lines: list[TraceEvent], process: str) -> bool:
    """With its last report on the wire."""
    ends = [line.event for line in lines if isinstance(line.event, ProcessDead) and line.event.process == process]
    return any(end.cause != "exit code 0" for end in ends)


def renumber(trace: list[TraceEvent]) -> list[TraceEvent]:
    """The same with ordinals and the final count made to fit, as a runtime that lost the event itself would write."""
    lines = [replace(line, ordinal=n) for n, line in enumerate(trace)]
    return [
        replace(line, event=replace(line.event, events=line.ordinal)) if isinstance(line.event, RunFinished) else line
        for line in lines
    ]
