"""What the stages did during a measurement, from their own step events: whose path, how long, how full, how idle."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.events import Event
from stages.events import InputReady, ProcessReady, StepDone, StepRow


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """One stage under load, all its replicas.

    `step_ms` by step; `rows` a step on average. `gap_ms` lies between two steps that have a request in common: the
    host's share, and waiting for input. `busy` is the share of the time that a replica spent in steps. `unit_ms` by
    request: from its first unit to its last, a unit (`unit`, token or frame), waiting included. `counters` sum what the
    runner says of its path.
    """

    stage: str
    unit: str
    steps: int
    rows: float
    busy: float
    step_ms: tuple[float, ...]
    gap_ms: tuple[float, ...]
    unit_ms: tuple[float, ...]
    counters: Mapping[str, int]


class StepLog:
    """A listener that keeps the steps since the last `clear`. `facts` by process are what it said when it was ready;
    `prompt_tokens` are those of the first stages."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self._entries = {stage.name for stage in plan.entries}
        self.facts: dict[str, Mapping[str, str]] = {}
        self.clear()

    def clear(self) -> None:
        self._steps: dict[str, list[StepDone]] = defaultdict(list)
        self.prompt_tokens: list[int] = []

    def __call__(self, source: str, event: Event) -> None:
        if isinstance(event, StepDone):
            self._steps[source].append(event)
        elif isinstance(event, InputReady) and source.rpartition(".")[0] in self._entries:
            self.prompt_tokens.append(event.prompt_tokens)
        elif isinstance(event, ProcessReady):
            self.facts[source] = dict(event.facts)

    def loads(self, wall_s: float) -> tuple[StageLoad, ...]:
        """Of every stage that made a step, in the plan's order."""
        found = []
        for stage in self._plan.stages:
            replicas = [self._steps[p] for r in stage.replicas if (p := f"{stage.name}.{r.index}") in self._steps]
            if replicas:
                unit = "token" if "text" in stage.outputs else "frame"
                found.append(stage_load(stage.name, unit, replicas, wall_s * len(stage.replicas)))
        return tuple(found)


def stage_load(stage: str, unit: str, replicas: Iterable[list[StepDone]], available_s: float) -> StageLoad:
    """`replicas` are the steps of each, in order; `available_s` is the time of all of them together."""
    counters: Counter[str] = Counter()
    steps: list[StepDone] = []
    gaps: list[float] = []
    for replica in replicas:
        steps += replica
        gaps += [
            (after.t_ns - before.end_ns) / 1e6
            for before, after in pairwise(replica)
            if {row.uid for row in before.rows} & {row.uid for row in after.rows}
        ]
    for step in steps:
        counters.update(dict(step.counters))
    took = tuple((step.end_ns - step.t_ns) / 1e6 for step in steps)
    return StageLoad(
        stage=stage,
        unit=unit,
        steps=len(steps),
        rows=sum(len(step.rows) for step in steps) / len(steps),
        busy=sum(took) / 1e3 / available_s,
        step_ms=took,
        gap_ms=tuple(gaps),
        unit_ms=tuple(_unit_ms(steps)),
        counters=counters,
    )


def _unit_ms(steps: Iterable[StepDone]) -> Iterable[float]:
    ends: dict[int, list[tuple[int, StepRow]]] = defaultdict(list)
    for step in steps:
        for row in step.rows:
            if row.units:
                ends[row.uid].append((step.end_ns, row))
    for own in ends.values():
        units = sum(row.units for _, row in own[1:])
        if units:
            yield (own[-1][0] - own[0][0]) / 1e6 / units
