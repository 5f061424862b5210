"""What a simulation found, as tables and words for people and as a document for scripts. Computes no more than that."""

from collections.abc import Iterator, Sequence
from typing import Any

from omni_cli.trace.step_model import StepModel
from omni_cli.trace.whatif import Outcome, percentile, stages_by_queue

NOT_MODELLED = (
    "not modelled: GPUs, cores and memory bandwidth that processes share; max_queue; previews and shapes of pictures; "
    "step times beyond the recorded batch sizes follow the fitted line"
)
QUEUED = 0.5  # requests that wait for a slot on average: from there on a stage is what holds up the others
HEADER = ("load", "requests/s", "TTFT ms", "TTFA ms", "total ms")


def row(outcome: Outcome, name: str = "") -> tuple[str, ...]:
    """Medians and 99th percentiles, in the columns of HEADER."""
    times = (outcome.first_ns.get("text", ()), outcome.first_ns.get("audio", ()), outcome.total_ns)
    return (name or outcome.demand.name, f"{rate(outcome):.3g}", *map(_two, times))


def rate(outcome: Outcome) -> float:
    """Requests a second, from the first admission to the last end."""
    return len(outcome.total_ns) / max(1, outcome.span_ns) * 1e9


def _two(samples: Sequence[int]) -> str:
    median, tail = percentile(samples, 0.5), percentile(samples, 0.99)
    return "-" if median is None or tail is None else f"{median:.1f} {tail:.1f}"


STAGE_HEADER = ("load", "stage", "replicas", "in steps", "rows a step", "waiting", "wait ms")


def stage_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    for name, load in outcome.stages.items():
        waiting = load.wait_ns / max(1, outcome.span_ns)
        yield (
            outcome.demand.name, name, str(load.replicas), f"{_busy(outcome, name):.0%}",
            f"{load.rows / max(1, load.steps):.2f}", f"{waiting:.2f}",
            f"{load.wait_ns / max(1, load.requests) / 1e6:.1f}",
        )  # fmt: skip


def _busy(outcome: Outcome, stage: str) -> float:
    load = outcome.stages[stage]
    return load.busy_ns / max(1, outcome.span_ns) / load.replicas


def bottleneck(outcome: Outcome) -> str:
    """Where requests wait for a slot, and which stage would be next; where none waits, which is in steps most."""
    name, waiting, busy = next(stages_by_queue(outcome))
    by_load = sorted(outcome.stages, key=lambda each: -_busy(outcome, each))
    head = f"{outcome.demand.name}: "
    if outcome.refused:
        head += f"{outcome.refused} requests do not fit the KV cache; "
    if waiting < QUEUED:
        return f"{head}nobody waits long for a slot; {by_load[0]} is in steps most, {_busy(outcome, by_load[0]):.0%}"
    rest = [each for each in by_load if each != name]
    then = f"; next is {rest[0]}, in steps {_busy(outcome, rest[0]):.0%}" if rest else ""
    return f"{head}{waiting:.1f} requests wait for a slot in {name} on average (in steps {busy:.0%}){then}"


def beyond(models: dict[str, StepModel]) -> Iterator[str]:
    """The stages that were asked for larger batches than were recorded."""
    for stage, model in models.items():
        seen = max(fit.most_rows for fit in model.all)
        if model.most_rows > seen:
            yield f"{stage}: batches of up to {model.most_rows} rows are extrapolated, the trace has up to {seen}"


def document(outcome: Outcome) -> dict[str, Any]:
    def ms(samples: Sequence[int]) -> dict[str, float | None]:
        return {"p50": percentile(samples, 0.5), "p99": percentile(samples, 0.99)}

    return {
        "load": outcome.demand.name,
        "requests": len(outcome.total_ns),
        "refused": outcome.refused,
        "requests_a_second": rate(outcome),
        "total_ms": ms(outcome.total_ns),
        "first_ms": {kind: ms(samples) for kind, samples in outcome.first_ns.items()},
        "stages": {
            name: {
                "replicas": load.replicas,
                "busy": _busy(outcome, name),
                "rows_a_step": load.rows / max(1, load.steps),
                "waiting": load.wait_ns / max(1, outcome.span_ns),
            }
            for name, load in outcome.stages.items()
        },
        "bottleneck": bottleneck(outcome),
    }
