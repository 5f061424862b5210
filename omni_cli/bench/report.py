"""Figures for people, for programs and for a page of the documentation."""

from collections.abc import Iterable, Sequence
from typing import Any

from omni_cli.bench.figure import Figure, Measured

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A header and its rows, of text."""

HEADER = ("figure", "median", "middle half", "1 % to 99 %", "aim", "")


def rows(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    return [_row(figure) for figure in figures]


def _row(figure: Figure) -> tuple[str, ...]:
    def span(low: float, high: float) -> str:
        return f"{number(figure.quantile(low))} to {number(figure.quantile(high))}"

    return (
        figure.title,
        f"{number(figure.median)} {figure.unit}",
        span(0.25, 0.75),
        span(0.01, 0.99),
        "" if figure.aim is None else f"{figure.aim} {figure.unit}",
        figure.verdict,
    )


def number(value: float) -> str:
    """Three digits that mean something."""
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def document(measured: Measured) -> dict[str, Any]:
    """As JSON: every figure with its samples, in the order in which they were taken."""
    return {
        "plan_digest": measured.digest,
        "machine": dict(measured.machine),
        "figures": {figure.key: figure_document(figure) for figure in measured.figures},
    }


def figure_document(figure: Figure) -> dict[str, Any]:
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


def markdown(measured: Measured, command: str) -> str:
    """A section for a page: the table, the machine, and `command`, which repeats it."""
    return section(command, [(HEADER, rows(measured.figures))], measured.digest, measured.machine)


def section(command: str, tables: Iterable[Table], digest: str, machine: Iterable[tuple[str, str]]) -> str:
    """What every section of a page has: the command that repeats it, the tables, the plan, the machine."""
    lines = [f"Measured by `{command}`.", ""]
    for header, cells in tables:
        lines += [f"| {' | '.join(line)} |" for line in (header, ("---",) * len(header), *cells)]
        lines.append("")
    facts = "; ".join(f"{name} {value}" for name, value in machine)
    return "\n".join([*lines, f"Plan `{digest[:16]}`. Machine: {facts}.", ""])
