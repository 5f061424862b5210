"""What a recorded run asks of a deployment: for each request what every stage did for it, and what the machinery
between the stages costs. Read from a trace; knows neither plan nor scheduler.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from omni_cli.errors import TraceError
from omni_cli.runtime.events import RequestAdmitted, StageSubmitted
from omni_cli.trace.codec import TraceEvent
from omni_cli.trace.step_model import StepModel, features, kind_of
from omni_cli.trace.summary import OutputFlow, RequestSummary, RunSummary
from stages.events import InputReady, MessageGot, MessagePut, OutputProduced, StageFinished, StepDone
from stages.messages import REQUEST

_QUIET = 0.2  # the quantile of pauses that is the machinery's own, where others are waits for input


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A message to `consumer` once the stage has done `position` units."""

    consumer: str
    position: int
    units: int
    eos: bool


@dataclass(slots=True, kw_only=True)
class StageWork:
    """What a stage does for one request. `first` has, by type of output, the position of its first piece."""

    inputs: tuple[str, ...]
    units: int = 0
    prompt_tokens: int = 1
    puts: list[Put] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)
    outputs: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One finished request: when it came, and what each stage does for it, in topological order."""

    admitted_ns: int
    stages: Mapping[str, StageWork]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """All but the requests and the models are samples. `hand_off_ns` by (producer, consumer, whether that is in a step
    meanwhile): the way of a message, without the rest of the step. `pause_ns` by stage: between two steps of one that
    has more to do. `entry_ns`: the way to the first stages; `output_ns`: from the last one to the caller."""

    requests: Sequence[Work]
    models: Mapping[str, StepModel]
    hand_off_ns: Mapping[tuple[str, str, bool], Sequence[int]]
    pause_ns: Mapping[str, Sequence[int]]
    entry_ns: Sequence[int]
    output_ns: Sequence[int]


def read_workload(events: Iterable[TraceEvent], run: RunSummary) -> Workload:
    """`run` is the summary of the same events. TraceError if no request has finished, or a stage has too few steps."""
    works, steps, whole_ns = _collect(events)
    finished = [request for request in run.requests.values() if request.status == "finished" and request.stages]
    if not finished:
        raise TraceError("no request has finished in the trace: there is nothing to simulate")
    by_stage: dict[str, list[StepDone]] = defaultdict(list)
    for process, done in steps.items():
        by_stage[process.rpartition(".")[0]] += done
    busy = {process: _Busy(done) for process, done in steps.items()}
    return Workload(
        requests=[Work(admitted_ns=r.admitted_ns, stages=works[r.uid]) for r in finished],
        models={
            stage: StepModel(stage, [(kind_of(s.rows), features(s.rows), s.end_ns - s.t_ns) for s in done])
            for stage, done in by_stage.items()
        },
        hand_off_ns=_hand_offs(finished, busy),
        pause_ns={
            stage: _pauses(
                [done for process, done in steps.items() if process.rpartition(".")[0] == stage], whole_ns[stage]
            )
            for stage in by_stage
        },
        entry_ns=[_entry_ns(request, busy) for request in finished],
        output_ns=[r.end_ns - max(span.end_ns for span in r.stages.values()) for r in finished],
    )


def _collect(
    events: Iterable[TraceEvent],
) -> tuple[dict[int, dict[str, StageWork]], dict[str, list[StepDone]], dict[str, dict[int, int]]]:
    """What the stages do by request, the steps by process, and by stage when each request had read all of its input."""
    works: dict[int, dict[str, StageWork]] = {}
    steps: dict[str, list[StepDone]] = defaultdict(list)
    last: dict[tuple[int, str, str], int] = {}  # of each stream the last message
    whole_ns: dict[str, dict[int, int]] = defaultdict(dict)
    for line in events:
        event, stage = line.event, line.source.rpartition(".")[0]
        if isinstance(event, RequestAdmitted):
            works[event.uid] = {}
        elif isinstance(event, StageSubmitted):
            if event.uid in works:
                works[event.uid][event.stage] = StageWork(inputs=event.waits_for)
        elif isinstance(event, StepDone):
            if event.rows:
                steps[line.source].append(event)
            for row in event.rows:
                if row.units > 1 and row.phase != "forward":  # which a simulation would do one by one
                    raise ValueError(f"{line.source} did {row.units} units in a {row.phase} row")
                if (work := works.get(row.uid, {}).get(stage)) is not None:
                    work.units += row.units
        elif isinstance(event, MessageGot):
            if event.producer == REQUEST or last.get((event.uid, event.producer, stage)) == event.seq:
                whole_ns[stage][event.uid] = event.t_ns  # of several streams, the one that ends last counts
        elif isinstance(event, InputReady | MessagePut | OutputProduced | StageFinished):
            if (work := works.get(event.uid, {}).get(stage)) is None:
                continue
            if isinstance(event, StageFinished):
                if event.units != work.units:
                    raise ValueError(f"{stage} finished with {event.units} units, its steps have done {work.units}")
            elif isinstance(event, InputReady):
                work.prompt_tokens = max(1, event.prompt_tokens)
            elif isinstance(event, MessagePut):
                m = event.message
                if m.eos:
                    last[event.uid, m.producer, m.consumer] = m.seq
                work.puts.append(Put(consumer=m.consumer, position=work.units, units=m.units, eos=m.eos))
            else:
                work.outputs.add(event.modality)
                if OutputFlow(modality=event.modality).take(event):
                    work.first.setdefault(event.modality.partition("_")[0], work.units)
    return works, steps, whole_ns


class _Busy:
    """The steps of one process, to ask how much of a time was spent in them."""

    def __init__(self, steps: Sequence[StepDone]) -> None:
        self._steps = steps
        self._starts = [step.t_ns for step in steps]

    def within(self, start_ns: int, end_ns: int) -> int:
        total = 0
        for step in self._steps[max(0, bisect_right(self._starts, start_ns) - 1) :]:
            if step.t_ns >= end_ns:
                break
            total += max(0, min(step.end_ns, end_ns) - max(step.t_ns, start_ns))
        return total


def _hand_offs(requests: Sequence[RequestSummary], busy: Mapping[str, _Busy]) -> dict[tuple[str, str, bool], list[int]]:
    """Of messages that were not taken along by one that was on its way to the same process."""
    to: dict[str, list[tuple[int, int, str, str]]] = defaultdict(list)
    for request in requests:
        for (producer, consumer), edge in request.edges.items():
            to[request.stages[consumer].process] += ((*flight, producer, consumer) for flight in edge.flights)
    found: dict[tuple[str, str, bool], list[int]] = defaultdict(list)
    for process, flights in to.items():
        last_ns = 0
        for put_ns, got_ns, producer, consumer in sorted(flights):
            if put_ns >= last_ns:
                in_step_ns = busy[process].within(put_ns, got_ns)
                found[producer, consumer, in_step_ns > 0].append(got_ns - put_ns - in_step_ns)
                last_ns = got_ns
    return found


def _entry_ns(request: RequestSummary, busy: Mapping[str, _Busy]) -> int:
    """From the admission until the first stage could start, but for what it was in a step."""
    first = next(iter(request.stages.values()))
    ready_ns = first.ready_ns if first.ready_ns is not None else first.submitted_ns
    return ready_ns - request.admitted_ns - busy[first.process].within(request.admitted_ns, ready_ns)


def _pauses(processes: Sequence[Sequence[StepDone]], whole_ns: Mapping[int, int]) -> list[int]:
    """Between two steps of one request: those that cannot have been a wait for its input, as it had all; where there
    are none, the shorter ones of all."""
    sure, found = [], []
    for steps in processes:
        for before, after in pairwise(steps):
            both = {row.uid for row in before.rows} & {row.uid for row in after.rows}
            if both:
                found.append(after.t_ns - before.end_ns)
            if any(whole_ns.get(uid, 0) <= before.end_ns for uid in both):
                sure.append(found[-1])
    return sure or sorted(found)[: max(1, round(_QUIET * len(found)))]
