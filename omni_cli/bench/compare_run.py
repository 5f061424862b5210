"""`omni bench compare`, from its words and options to tables of figures and of ratios."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_cli.artifacts.atomic import write_text
from omni_cli.bench.compare import FORCED, SHIPPED, Comparison, comparable
from omni_cli.bench.figure import Figure
from omni_cli.bench.level import Level
from omni_cli.bench.page import write_section
from omni_cli.bench.report import Table, number, section
from omni_cli.bench.run import BenchOptions, say_failures, sized_requests
from omni_cli.bench.serving_report import level_document
from omni_cli.console import logging_to
from omni_cli.launch.signals import Interrupts
from omni_cli.streams import say
from omni_cli.table import stdout, table

_RATES = ("requests_per_s",)  # more is better; of everything else, less


def bench_compare(words: Sequence[str], options: BenchOptions, *, json_to: Path | None, page: Path | None) -> int:
    """0, or 1 if a request failed or answers differ where they must not. Raises OmniError for what is refused."""
    prepared = comparable(words)
    comparison = Comparison(
        prepared=prepared,
        requests=sized_requests(prepared, options),
        count=options.requests or 4,
        concurrency=tuple(dict.fromkeys((1, *options.concurrency))),
    )
    with Interrupts() as interrupts, logging_to(None, quiet=True):
        comparison.measure(interrupts, say)
    levels = comparison.levels
    command = shlex.join(["omni", "bench", "compare", *words, *options.argv()])
    shown = [values(levels), ratios(levels)]
    for header, rows in shown:
        stdout().print(table(header, rows))
        stdout().print()
    verdict = agreement(comparison)
    stdout().print(f"{verdict}\nplan: {prepared.plan.digest}")
    say_failures(levels)
    if json_to is not None:
        found = document(comparison, shown[1], command)
        write_text(json_to, json.dumps(found, ensure_ascii=False, indent=2) + "\n")
    if page is not None:
        text = section(command, shown, prepared.plan.digest, prepared.machine)
        write_section(page, prepared.section("compare"), f"{text.rstrip()} {verdict}\n")
        say(f"written to {page}")
    return int(any(level.failed for level in levels.values()) or comparison.agreed != comparison.compared)


def _measures(level: Level) -> dict[str, str]:
    """Keys of the figures that are compared, with their titles."""
    units = {f"{load.stage}_{load.unit}_ms": f"ms a {load.unit}" for load in level.stages if load.unit_ms}
    return {"ttft_ms": "TTFT ms", "ttfa_ms": "TTFA ms", **units, "rtf": "RTF", "requests_per_s": "requests/s"}


def _columns(levels: Mapping[str, Level]) -> dict[str, str]:
    """Those that the reference has as well."""
    found: dict[str, str] = {}
    for name in (SHIPPED, FORCED):
        found |= _measures(levels[name])
    return found


def values(levels: Mapping[str, Level]) -> Table:
    """Medians; a row for each side and load."""
    columns = _columns(levels)
    rows = []
    for name, level in levels.items():
        figures = level.figures()
        cells = (number(figures[key].median) if key in figures else "-" for key in columns)
        rows.append((name, str(len(level.done)), str(len(level.failed)), *cells))
    return ("side", "done", "failed", *columns.values()), rows


def ratios(levels: Mapping[str, Level]) -> Table:
    """How many times better omni is; a row for each load of omni and each side that it is held against."""
    columns = _columns(levels)
    rows = []
    for base in (SHIPPED, FORCED):
        theirs = levels[base].figures()
        for name, level in levels.items():
            if name not in (SHIPPED, FORCED):
                own = level.figures()
                rows.append((f"{name} / {base}", *_ratios(own, theirs, columns)))
    return ("times better", *columns.values()), rows


def _ratios(own: Mapping[str, Figure], theirs: Mapping[str, Figure], columns: Mapping[str, str]) -> Iterator[str]:
    for key in columns:
        if key not in own or key not in theirs or not own[key].median or not theirs[key].median:
            yield "-"
            continue
        times = own[key].median / theirs[key].median
        yield f"{number(times if key in _RATES else 1 / times)} x"


def agreement(comparison: Comparison) -> str:
    if not comparison.exact:
        return "Answers are not compared: but for float32 on a CPU, near ties may fall either way."
    if not comparison.compared:
        return "Answers are not compared: text alone crosses no edge on which its ids could be seen."
    return f"Ids and codes of {comparison.agreed} of {comparison.compared} answers are those of `generate`."


def document(comparison: Comparison, times: Table, command: str) -> dict[str, Any]:
    """As JSON: every level with its samples, the ratios as printed."""
    header, rows = times
    return {
        "command": command,
        "plan_digest": comparison.prepared.plan.digest,
        "machine": dict(comparison.prepared.machine),
        "levels": {name: level_document(level) for name, level in comparison.levels.items()},
        "times_better": {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows},
        "agreed": comparison.agreed,
        "compared": comparison.compared,
    }
