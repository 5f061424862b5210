"""Splits the latency of each request into what it was spent on, to the nanosecond, and tells what grows with the load.

Of what a request does at one moment only the first counts of: a step (of the stage nearest to the input, which the
others wait for), a wait for a slot, a hand-off, a pause between steps. So nothing is counted twice.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from omni_cli.trace.summary import OPEN, QUEUE, RUN, STALL, WAIT, RequestSummary

HAND_OFF, OUTPUT = "hand-off", "output"
KINDS = (WAIT, RUN, STALL, HAND_OFF, OUTPUT)
_RANKS = {RUN: 0, WAIT: 1, HAND_OFF: 2, STALL: 3}

Share = tuple[str, str]  # (kind, stage; an edge's is its consumer; empty for `output`)


def split(request: RequestSummary) -> Mapping[Share, int]:
    """ns by (kind, stage); the sum is the request's whole time. What nothing else explains is `output`: the way from
    the last stage to the caller, and that from the caller to the first stage."""
    changes: list[tuple[int, int, tuple[int, int, Share]]] = []
    for start_ns, end_ns, place, share in _intervals(request):
        start_ns, end_ns = max(start_ns, request.admitted_ns), min(end_ns, request.end_ns)
        if start_ns < end_ns:
            key = (_RANKS[share[0]], place, share)
            changes += [(start_ns, 1, key), (end_ns, -1, key)]
    changes.sort(key=lambda change: change[0])
    shares: Counter[Share] = Counter()
    active: Counter[tuple[int, int, Share]] = Counter()
    at_ns = request.admitted_ns
    for now_ns, sign, key in [*changes, (request.end_ns, 0, (0, 0, (OUTPUT, "")))]:
        if now_ns > at_ns:
            shares[min(active)[2] if active else (OUTPUT, "")] += now_ns - at_ns
            at_ns = now_ns
        active[key] += sign
        if not active[key]:
            del active[key]
    return shares


def _intervals(request: RequestSummary) -> Iterator[tuple[int, int, int, Share]]:
    for place, span in enumerate(request.stages.values()):
        for kind, start_ns, end_ns in span.phases():
            if kind != QUEUE:
                yield start_ns, end_ns, place, (kind, span.stage)
            elif place == 0:  # the command to start is handed over like a message
                yield start_ns, end_ns, place, (HAND_OFF, span.stage)
    order = {stage: place for place, stage in enumerate(request.stages)}
    for edge in request.edges.values():
        for put_ns, got_ns in edge.flights:
            yield put_ns, got_ns, order.get(edge.consumer, 0), (HAND_OFF, edge.consumer)


@dataclass(slots=True)
class Level:
    """The requests that had from `low` up to less than twice as many in flight beside them, themselves included;
    `high` is the most that one of them had."""

    low: int
    high: int = 0
    requests: int = 0
    total_ns: int = 0
    shares: Counter[Share] = field(default_factory=Counter)

    def mean_ns(self, kind: str) -> int:
        return sum(ns for (each, _), ns in self.shares.items() if each == kind) // self.requests

    @property
    def mean_total_ns(self) -> int:
        return self.total_ns // self.requests

    @property
    def name(self) -> str:
        return str(self.low) if self.high <= self.low else f"{self.low}-{self.high}"


def levels(requests: Iterable[RequestSummary]) -> list[Level]:
    """By the mean load while the request lasted, in powers of two, the lowest first; only of what has ended."""
    ended = [request for request in requests if request.status != OPEN and request.total_ns]
    changes = sorted((t, sign) for each in ended for t, sign in ((each.admitted_ns, 1), (each.end_ns, -1)))
    in_flight, before_ns, area, areas = 0, 0, 0, {}
    for now_ns, sign in changes:
        area += in_flight * (now_ns - before_ns)
        areas[now_ns] = area
        in_flight, before_ns = in_flight + sign, now_ns
    found: dict[int, Level] = {}
    for request in ended:
        load = round((areas[request.end_ns] - areas[request.admitted_ns]) / request.total_ns)
        low = 1 << (max(1, load).bit_length() - 1)
        level = found.setdefault(low, Level(low))
        level.high = max(level.high, load)
        level.requests += 1
        level.total_ns += request.total_ns
        level.shares.update(split(request))
    return [found[low] for low in sorted(found)]
