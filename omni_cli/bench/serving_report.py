"""What `omni bench run` has found: tables for people, JSON for programs, a section for a page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from omni_cli.bench.figure import Figure
from omni_cli.bench.level import Level
from omni_cli.bench.report import Table, figure_document, number, section
from omni_cli.bench.serving import Serving

Machine = Sequence[tuple[str, str]]

_LEVELS = (
    "load", "done", "failed", "TTFT ms", "TTFA ms", "gap ms", "underruns", "pre-buffer ms", "RTF", "xRT", "requests/s",
)  # fmt: skip
_STAGES = ("load", "stage", "busy", "steps", "rows", "step ms", "between ms", "unit ms", "counters")
SPREAD_NOTE = "Two numbers in a cell are the median and the 99th percentile."


def tables(levels: Sequence[Level]) -> tuple[Table, Table]:
    """A row for each load; a row for each stage under it."""
    stages = [row for level in levels for row in _stages(level)]
    return (_LEVELS, [_level(level) for level in levels]), (_STAGES, stages)


def _level(level: Level) -> tuple[str, ...]:
    found = level.figures()
    underruns = found.get("underruns")
    return (
        str(level.load),
        str(len(level.done)),
        str(len(level.failed)),
        *(_spread(found.get(key)) for key in ("ttft_ms", "ttfa_ms", "gap_ms")),
        "-" if underruns is None else f"{sum(underruns.samples):.0f}",
        _most(found.get("prebuffer_ms")),
        _spread(found.get("rtf")),
        *(_median(found.get(key)) for key in ("xrt", "requests_per_s")),
    )


def _stages(level: Level) -> list[tuple[str, ...]]:
    found = level.figures()
    return [
        (
            str(level.load),
            stage.stage,
            f"{stage.busy:.0%}",
            str(stage.steps),
            number(stage.rows),
            *(_spread(found.get(f"{stage.stage}_{key}_ms")) for key in ("step", "gap")),
            f"{_spread(found.get(f'{stage.stage}_{stage.unit}_ms'))} a {stage.unit}" if stage.unit_ms else "-",
            ", ".join(f"{name} {count}" for name, count in stage.counters.items()) or "-",
        )
        for stage in level.stages
    ]


def _spread(figure: Figure | None) -> str:
    return "-" if figure is None else f"{number(figure.median)} {number(figure.quantile(0.99))}"


def _median(figure: Figure | None) -> str:
    return "-" if figure is None else number(figure.median)


def _most(figure: Figure | None) -> str:
    return "-" if figure is None else number(max(figure.samples))


def document(serving: Serving, machine: Machine, command: str) -> dict[str, Any]:
    """As JSON: every figure with its samples, every failure with its reason."""
    requests = serving.requests
    return {
        "command": command,
        "plan_digest": serving.plan.digest,
        "machine": dict(machine),
        "processes": serving.facts,
        "workload": {**asdict(requests.size), "outputs": list(requests.outputs), "seed": requests.seed},
        "levels": [level_document(level) for level in serving.levels],
    }


def level_document(level: Level) -> Mapping[str, Any]:
    return {
        "load": asdict(level.load),
        "wall_s": level.wall_s,
        "done": len(level.done),
        "failed": [{"request": one.number, "error": one.error} for one in level.failed],
        "warm_up_failed": level.warm_up_failed,
        "figures": {key: figure_document(figure) for key, figure in level.figures().items()},
        "counters": {stage.stage: dict(stage.counters) for stage in level.stages},
        "steps": {stage.stage: stage.steps for stage in level.stages},
    }


def markdown(serving: Serving, machine: Machine, command: str) -> str:
    """A section for a page."""
    size, outputs = serving.requests.size, ", ".join(serving.requests.outputs)
    workload = (
        f"A request has {size.prompt_tokens} prompt tokens and asks for {outputs}: {size.text_tokens} text tokens, "
        f"{size.frames} frames; end tokens ignored, no two requests alike. {SPREAD_NOTE}"
    )
    text = section(command, tables(serving.levels), serving.plan.digest, machine)
    first, rest = text.split("\n", 1)
    return f"{first} {workload}\n{rest}"
