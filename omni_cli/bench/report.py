"""Figures for people, for programs and for a page of the documentation."""

from collections.abc import Sequence
from typing import Any

from omni_cli.bench.figure import Figure
from omni_cli.bench.overhead import Overhead

HEADER = ("figure", "median", "middle half", "1 % to 99 %", "aim", "")


def rows(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    return [_row(figure) for figure in figures]


def _row(figure: Figure) -> tuple[str, ...]:
    def span(low: float, high: float) -> str:
        return f"{_number(figure.quantile(low))} to {_number(figure.quantile(high))}"

    return (
        figure.title,
        f"{_number(figure.median)} {figure.unit}",
        span(0.25, 0.75),
        span(0.01, 0.99),
        "" if figure.aim is None else f"{figure.aim} {figure.unit}",
        figure.verdict,
    )


def _number(value: float) -> str:
    """Three digits that mean something."""
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def document(overhead: Overhead) -> dict[str, Any]:
    """As JSON: every figure with its samples, in the order in which they were taken."""
    return {
        "plan_digest": overhead.digest,
        "machine": dict(overhead.machine),
        "figures": {figure.key: _figure(figure) for figure in overhead.figures},
    }


def _figure(figure: Figure) -> dict[str, Any]:
    aim = figure.aim
    return {
        "title": figure.title,
        "unit": figure.unit,
        "median": figure.median,
        "p1": figure.quantile(0.01),
        "p25": figure.quantile(0.25),
        "p75": figure.quantile(0.75),
        "p99": figure.quantile(0.99),
        "aim": None if aim is None else {"kind": aim.kind, "limit": aim.limit},
        "met": None if aim is None else aim.met(figure.median),
        "samples": list(figure.samples),
    }


def markdown(overhead: Overhead, command: str) -> str:
    """A section for a page: the table, the machine, and `command`, which repeats it."""
    lines = [f"| {' | '.join(cells)} |" for cells in (HEADER, ("---",) * len(HEADER), *rows(overhead.figures))]
    facts = "; ".join(f"{name} {value}" for name, value in overhead.machine)
    return "\n".join(
        [f"Measured by `{command}`.", "", *lines, "", f"Plan `{overhead.digest[:16]}`. Machine: {facts}.", ""]
    )
