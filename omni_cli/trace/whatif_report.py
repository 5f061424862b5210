"""What a simulation found, as tables and words for people and as a document for scripts. Computes no more than that."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from omni_cli.quantile import quantile
from omni_cli.trace.step_model import StepModel
from omni_cli.trace.summary import RunSummary
from omni_cli.trace.whatif import Demand, Outcome

NOT_MODELLED = (
    "not modelled: GPUs, cores and memory bandwidth that processes share; room for KV that a plan would no longer "
    "grant; max_queue; full rings on complete edges; previews and shapes of pictures; step times beyond the recorded "
    "batch sizes follow the fitted line"
)
QUEUED = 0.5  # requests that wait for a slot on average: from there on a stage is what holds up the others
HEADER = ("load", "requests/s", "TTFT ms", "TTFA ms", "total ms")


def recorded(run: RunSummary) -> Outcome:
    """The run itself, of the requests that have finished; says nothing of its stages."""
    ended = [request for request in run.requests.values() if request.status == "finished"]
    outcome = Outcome(demand=Demand(name="the run itself", requests=len(ended)))
    outcome.span_ns = max(r.end_ns for r in ended) - min(r.admitted_ns for r in ended)
    for request in ended:
        outcome.total_ns.append(request.total_ns)
        for kind in ("text", "audio"):
            if (first_ns := request.first_ns(kind)) is not None:
                outcome.first_ns[kind].append(first_ns)
    return outcome


def row(outcome: Outcome, name: str = "") -> tuple[str, ...]:
    """Medians and 99th percentiles, in the columns of HEADER."""
    times = (outcome.first_ns.get("text", ()), outcome.first_ns.get("audio", ()), outcome.total_ns)
    return (name or outcome.demand.name, f"{rate(outcome):.3g}", *map(_two, times))


def rate(outcome: Outcome) -> float:
    """Requests a second, from the first admission to the last end."""
    return len(outcome.total_ns) / max(1, outcome.span_ns) * 1e9


def _two(samples: Sequence[int]) -> str:
    found = _ms(samples)
    return "-" if found["p50"] is None else f"{found['p50']:.1f} {found['p99']:.1f}"


def _ms(samples: Sequence[int]) -> dict[str, float | None]:
    """As `omni bench run` has them."""
    if not samples:
        return {"p50": None, "p99": None}
    return {"p50": median(samples) / 1e6, "p99": quantile(sorted(samples), 0.99) / 1e6}


STAGE_HEADER = ("load", "stage", "replicas", "in steps", "rows a step", "waiting", "wait ms")


def stage_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    for name, load in outcome.stages.items():
        yield (
            outcome.demand.name, name, str(load.replicas), f"{_busy(outcome, name):.0%}",
            f"{load.rows / max(1, load.steps):.2f}", f"{_waiting(outcome, name):.2f}",
            f"{load.wait_ns / max(1, load.requests) / 1e6:.1f}",
        )  # fmt: skip


def _busy(outcome: Outcome, stage: str) -> float:
    load = outcome.stages[stage]
    return load.busy_ns / max(1, outcome.span_ns) / load.replicas


def _waiting(outcome: Outcome, stage: str) -> float:
    """Requests that wait for a slot there, on average."""
    return outcome.stages[stage].wait_ns / max(1, outcome.span_ns)


def bottleneck(outcome: Outcome) -> str:
    """Where requests wait for a slot, and which stage would be next; where none waits, which is in steps most."""
    by_load = sorted(outcome.stages, key=lambda each: -_busy(outcome, each))
    name = max(by_load, key=lambda each: _waiting(outcome, each))
    waiting, busy = _waiting(outcome, name), _busy(outcome, name)
    head = f"{outcome.demand.name}: "
    if outcome.refused:
        head += f"{outcome.refused} requests do not fit the KV cache; "
    if waiting < QUEUED:
        return f"{head}nobody waits long for a slot; {by_load[0]} is in steps most, {_busy(outcome, by_load[0]):.0%}"
    rest = [each for each in by_load if each != name]
    then = f"; next is {rest[0]}, in steps {_busy(outcome, rest[0]):.0%}" if rest else ""
    return f"{head}{waiting:.1f} requests wait for a slot in {name} on average (in steps {busy:.0%}){then}"


def beyond(models: dict[str, StepModel]) -> Iterator[str]:
    """The stages that were asked for larger batches than were recorded, or for steps of another kind."""
    for stage, model in models.items():
        seen = max(fit.most_rows for fit in model.all)
        if model.most_rows > seen:
            yield f"{stage}: batches of up to {model.most_rows} rows are extrapolated, the trace has up to {seen}"
        for kind in sorted(model.unseen):
            yield f"{stage}: the trace has no {kind} step; one takes what the line of {model.fit(kind).kind} says"


def document(outcome: Outcome) -> dict[str, Any]:
    return {
        "load": outcome.demand.name,
        "requests": len(outcome.total_ns),
        "refused": outcome.refused,
        "requests_a_second": rate(outcome),
        "total_ms": _ms(outcome.total_ns),
        "first_ms": {kind: _ms(samples) for kind, samples in outcome.first_ns.items()},
        "stages": {
            name: {
                "replicas": load.replicas,
                "busy": _busy(outcome, name),
                "rows_a_step": load.rows / max(1, load.steps),
                "waiting": _waiting(outcome, name),
            }
            for name, load in outcome.stages.items()
        },
        "bottleneck": bottleneck(outcome),
    }
