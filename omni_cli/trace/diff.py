"""Compares two runs: did the control plane decide alike for the same requests, and what does each spend its time on?

Requests are the same by their ids, decisions by what they decide and how often that was decided before. Times, leases
and the number of messages depend on the moment and are no decisions here. Judges neither run.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omni_cli.runtime.events import (
    CONTROL,
    Event,
    LeaseDropped,
    LeaseGranted,
    LeaseRead,
    MediaPut,
    OutputFinished,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    StageSubmitted,
)
from omni_cli.trace.codec import TraceEvent
from omni_cli.trace.decisions import subject
from omni_cli.trace.reader import TraceReader
from omni_cli.trace.split import Share, split
from omni_cli.trace.summary import RequestSummary, RunSummary, summarise

_OF_THE_MOMENT = (LeaseDropped, LeaseGranted, LeaseRead, MediaPut)
_ENDS = (RequestFinished, RequestFailed, RequestCancelled)


@dataclass(slots=True)
class Run:
    """A trace: its numbers, and the decisions of each request in their order."""

    path: Path
    decisions: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    summary: RunSummary = field(default_factory=RunSummary)

    @classmethod
    def read(cls, path: Path) -> "Run":
        run = cls(path)
        run.summary = summarise(run._noted(TraceReader(path)))
        return run

    def _noted(self, events: Iterable[TraceEvent]) -> Iterator[TraceEvent]:
        names: dict[int, str] = {}
        for line in events:
            event = line.event
            if isinstance(event, RequestAdmitted):
                names[event.uid] = event.request_id
            if line.source == CONTROL and not isinstance(event, _OF_THE_MOMENT):
                name = names.get(getattr(event, "uid", -1))
                if name is not None:
                    self.decisions[name].append(event)
            yield line

    def requests(self, ids: Iterable[str]) -> list[RequestSummary]:
        """Of each id the latest that has finished."""
        found = {r.request_id: r for r in self.summary.requests.values() if r.status == "finished"}
        return [found[name] for name in ids if name in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first decision about a request that is another in the two runs; None where one of them has none."""

    request: str
    a: Event | None
    b: Event | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Mean ns a request, in both runs: `shares` add up to `total`, `first` is by type of output (TTFT, TTFA)."""

    requests: int
    total: tuple[int, int]
    first: Mapping[str, tuple[int, int]]
    shares: Mapping[Share, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`both` are the ids that both runs have. `matched` is False if there is none: the times are of all then."""

    both: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    differences: tuple[Difference, ...]
    matched: bool
    times: Times | None


def compare(a: Run, b: Run) -> Comparison:
    both = tuple(name for name in a.decisions if name in b.decisions)
    found = (_first_difference(name, a.decisions[name], b.decisions[name]) for name in both)
    return Comparison(
        both=both,
        only_a=tuple(name for name in a.decisions if name not in b.decisions),
        only_b=tuple(name for name in b.decisions if name not in a.decisions),
        differences=tuple(difference for difference in found if difference is not None),
        matched=bool(both),
        times=_times(a, b, both),
    )


def _first_difference(name: str, a: Sequence[Event], b: Sequence[Event]) -> Difference | None:
    mine, others = _numbered(a), _numbered(b)
    for key, event in mine.items():
        other = others.get(key)
        if other is None or _decided(event) != _decided(other):
            return Difference(request=name, a=event, b=other)
    rest = next((event for key, event in others.items() if key not in mine), None)
    return None if rest is None else Difference(request=name, a=None, b=rest)


def _numbered(events: Iterable[Event]) -> dict[tuple[object, ...], Event]:
    """By what is decided, and how often it was before."""
    counts: Counter[tuple[object, ...]] = Counter()
    numbered = {}
    for event in events:
        kind, _, *what = subject(event)
        key = ("end",) if isinstance(event, _ENDS) else (kind, *what)
        numbered[(*key, counts[key])] = event
        counts[key] += 1
    return numbered


def _decided(event: Event) -> tuple[object, ...]:
    """What two runs can have in common of a decision."""
    kind = type(event)
    match event:
        case RequestAdmitted():
            return kind, event.outputs, event.stages
        case StageSubmitted():
            return kind, event.process, event.waits_for
        case OutputFinished():
            return kind, event.outcome, event.units
        case RequestFailed():
            return kind, event.error.kind, event.error.stage
    return (kind,)


def _times(a: Run, b: Run, both: Sequence[str]) -> Times | None:
    sides = [run.requests(both or run.decisions) for run in (a, b)]
    if both:
        common = {r.request_id for r in sides[0]} & {r.request_id for r in sides[1]}
        sides = [[r for r in side if r.request_id in common] for side in sides]
    if not all(sides):
        return None
    shares = [Counter[Share]() for _ in sides]
    for side, sums in zip(sides, shares, strict=True):
        for request in side:
            sums.update(split(request))
    order = [*dict.fromkeys((*shares[0], *shares[1]))]
    stages = list(dict.fromkeys(stage for side in sides for request in side for stage in request.stages))
    order.sort(key=lambda share: stages.index(share[1]) if share[1] in stages else len(stages))
    return Times(
        requests=len(sides[0]),
        total=_means([r.total_ns for r in side] for side in sides),
        first={
            kind: _means([ns for r in side if (ns := r.first_ns(kind)) is not None] for side in sides)
            for kind in ("text", "audio")
        },
        shares={share: (shares[0][share] // len(sides[0]), shares[1][share] // len(sides[1])) for share in order},
    )


def _means(sides: Iterable[list[int]]) -> tuple[int, int]:
    a, b = (sum(side) // len(side) if side else 0 for side in sides)
    return a, b
