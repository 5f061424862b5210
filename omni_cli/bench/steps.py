"""What the stages did during a measurement, from their own step events: whose path, how long, how full, how idle."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.events import Event, RequestAdmitted
from stages.events import InputReady, ProcessReady, StepDone

DENOISING = "denoising_step"
"""The unit of a stage that denoises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """One stage under load, all its replicas.

    Of a stage that denoises, each kind of its steps is one (`painter_denoise`). `step_ms` by step; `rows` a step on
    average; `units` in all of them. `gap_ms` lies between a step and the next one if they have a request in
    common: the host's share, and waiting for input. `busy` is the share of the time that a replica spent in steps.
    `unit_ms` by request: from its first unit to its last, a unit (`unit`: token, frame or denoising step), waiting
    included. `admissions` by request: denoising steps that ended between its submission and its first one, and the ms.
    `counters` sum what the runner says of its path.
    """

    stage: str
    unit: str
    steps: int
    rows: float
    units: int
    busy: float
    step_ms: tuple[float, ...]
    gap_ms: tuple[float, ...]
    unit_ms: tuple[float, ...]
    counters: Mapping[str, int]
    admissions: tuple[tuple[int, float], ...] = ()


class StepLog:
    """A listener that keeps the steps since the last `clear`. `facts` by process are what it said when it was ready."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self._entries = {stage.name for stage in plan.entries}
        self._names: dict[int, str] = {}
        self._admitted_ns: dict[int, int] = {}
        self.facts: dict[str, Mapping[str, str]] = {}
        self.clear()

    def clear(self) -> None:
        self._steps: dict[str, list[StepDone]] = defaultdict(list)
        self._prompts: list[tuple[int, int]] = []

    def __call__(self, source: str, event: Event) -> None:
        if isinstance(event, StepDone):
            self._steps[source].append(event)
        elif isinstance(event, InputReady) and source.rpartition(".")[0] in self._entries:
            self._prompts.append((event.uid, event.prompt_tokens))
        elif isinstance(event, RequestAdmitted):
            self._names[event.uid] = event.request_id
            self._admitted_ns[event.uid] = event.t_ns
        elif isinstance(event, ProcessReady):
            self.facts[source] = dict(event.facts)

    def prompt_tokens(self, done: Collection[str]) -> tuple[int, ...]:
        """Those of the first stages, of the requests with these ids."""
        return tuple(tokens for uid, tokens in self._prompts if self._name(uid) in done)

    def loads(self, wall_s: float, done: Collection[str]) -> tuple[StageLoad, ...]:
        """Of every stage that made a step, in the plan's order. What is counted by request is of `done` alone."""
        found: list[StageLoad] = []
        for stage in self._plan.stages:
            replicas = [self._steps[p] for r in stage.replicas if (p := f"{stage.name}.{r.index}") in self._steps]
            if not replicas:
                continue
            uids = {row.uid for steps in replicas for step in steps for row in step.rows}
            counted, wall = {uid for uid in uids if self._name(uid) in done}, wall_s * len(stage.replicas)
            if stage.execution_type == "diffusion":
                found += self._drawing_loads(stage.name, replicas, wall, counted)
            else:
                unit = "token" if "text" in stage.outputs else "frame"
                found.append(stage_load(stage.name, unit, replicas, wall, counted))
        return tuple(found)

    def _drawing_loads(
        self, stage: str, replicas: Sequence[Sequence[StepDone]], available_s: float, counted: Collection[int]
    ) -> Iterator[StageLoad]:
        for phase in ("encode", "denoise", "decode"):
            own = [steps for each in replicas if (steps := of_phase(each, phase))]
            if own:
                load = stage_load(f"{stage}_{phase}", DENOISING, own, available_s, counted)
                admitted = {uid: self._admitted_ns[uid] for uid in counted if uid in self._admitted_ns}
                found = [one for steps in own for one in _admissions(steps, admitted)] if phase == "denoise" else ()
                yield replace(load, admissions=tuple(found))

    def _name(self, uid: int) -> str:
        """A request that nobody has admitted goes by its uid."""
        return self._names.get(uid, str(uid))


def stage_load(
    stage: str, unit: str, replicas: Iterable[Sequence[StepDone]], available_s: float, counted: Collection[int]
) -> StageLoad:
    """`replicas` are the steps of each, in order; `available_s` is the time of all of them together; `counted` are the
    uids that have a `unit_ms`."""
    counters: Counter[str] = Counter()
    steps: list[StepDone] = []
    gaps: list[float] = []
    for replica in replicas:
        steps += replica
        gaps += [(after.t_ns - before.end_ns) / 1e6 for before, after in pairwise(replica) if _joined(before, after)]
    for step in steps:
        counters.update(dict(step.counters))
    took = tuple((step.end_ns - step.t_ns) / 1e6 for step in steps)
    return StageLoad(
        stage=stage,
        unit=unit,
        steps=len(steps),
        rows=sum(len(step.rows) for step in steps) / len(steps),
        units=sum(row.units for step in steps for row in step.rows),
        busy=sum(took) / 1e3 / available_s,
        step_ms=took,
        gap_ms=tuple(gaps),
        unit_ms=tuple(_unit_ms(steps, counted)),
        counters=counters,
    )


def of_phase(steps: Iterable[StepDone], phase: str) -> list[StepDone]:
    """Those of one kind; rows of a diffusion stage's step are of one."""
    return [step for step in steps if step.rows[0].phase == phase]


def _admissions(steps: Sequence[StepDone], admitted_ns: Mapping[int, int]) -> Iterator[tuple[int, float]]:
    for first in steps:
        for row in first.rows:
            if row.position == 0 and row.uid in admitted_ns:
                since_ns = admitted_ns[row.uid]
                passed = sum(since_ns < step.end_ns <= first.t_ns for step in steps)
                yield passed, (first.t_ns - since_ns) / 1e6


def _joined(before: StepDone, after: StepDone) -> bool:
    return after.index == before.index + 1 and not {row.uid for row in before.rows}.isdisjoint(
        row.uid for row in after.rows
    )


def _unit_ms(steps: Iterable[StepDone], counted: Collection[int]) -> Iterator[float]:
    ends: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for step in steps:
        for row in step.rows:
            if row.units and row.uid in counted:
                ends[row.uid].append((step.end_ns, row.units))
    for own in ends.values():
        units = sum(units for _, units in own[1:])
        if units:
            yield (own[-1][0] - own[0][0]) / 1e6 / units
