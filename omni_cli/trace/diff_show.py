"""Two runs side by side in a terminal, and as JSON. Compares nothing itself."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from omni_cli.runtime.events import Event
from omni_cli.trace.diff import Comparison, Run, Times
from omni_cli.trace.show import duration, plain
from omni_cli.trace.wording import told

SHOWN = 20  # requests that were decided otherwise
NAMED = 8  # requests that only one run has


def print_comparison(console: Console, a: Run, b: Run, found: Comparison) -> None:
    for text in _lines(a, b, found):
        console.print(Text(plain(text), overflow="fold"), soft_wrap=True)
    if found.times is not None:
        console.print(_times(found.times, found.matched))


def document(a: Run, b: Run, found: Comparison) -> dict[str, Any]:
    """What `--json` prints; times are means in ms."""
    times = found.times
    return {
        "a": str(a.path),
        "b": str(b.path),
        "both": len(found.both),
        "only_a": found.only_a,
        "only_b": found.only_b,
        "differences": [{"request": d.request, "a": _told(d.a), "b": _told(d.b)} for d in found.differences],
        "times": None
        if times is None
        else {
            "requests": times.requests,
            "total_ms": _ms(times.total),
            "first_ms": {kind: _ms(pair) for kind, pair in times.first.items()},
            "spent": [{"on": kind, "stage": stage or None, "ms": _ms(p)} for (kind, stage), p in times.shares.items()],
        },
    }


def _ms(pair: tuple[int, int]) -> list[float]:
    return [round(ns / 1e6, 6) for ns in pair]


def _lines(a: Run, b: Run, found: Comparison) -> Iterator[str]:
    for letter, run in (("A", a), ("B", b)):
        started = run.summary.started
        what = f"run {started.run_id}, plan {started.plan_digest:.12}" if started else "a trace without a start"
        yield f"{letter}  {run.path}: {what}" + ("" if run.summary.whole else ", stops before the end of the run")
    alike = len(found.both) - len(found.differences)
    yield f"{len(found.both)} requests in both, {alike} of them decided alike"
    for letter, names in (("A", found.only_a), ("B", found.only_b)):
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            yield f"only in {letter}: {' '.join(names[:NAMED])}{more}"
    for difference in found.differences[:SHOWN]:
        yield f"request {difference.request} first differs:"
        yield f"  A {_told(difference.a) or 'does nothing of the kind'}"
        yield f"  B {_told(difference.b) or 'does nothing of the kind'}"
    if len(found.differences) > SHOWN:
        yield f"and {len(found.differences) - SHOWN} requests more"


def _told(event: Event | None) -> str | None:
    return None if event is None else told(event)


def _times(times: Times, matched: bool) -> Table:
    whose = f"mean of {times.requests} requests that finished in both" if matched else "mean of all, none is in both"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=whose, title_justify="left", title_style="dim")
    for name in ("stage", "spent on", "A", "B", "B - A", "B / A"):
        table.add_column(name, justify="left" if name in ("stage", "spent on") else "right", no_wrap=True)
    rows = [(stage, kind, pair) for (kind, stage), pair in times.shares.items()]
    rows.append(("", "total", times.total))
    rows += [("", f"first {kind}", pair) for kind, pair in times.first.items() if any(pair)]
    for stage, kind, (a, b) in rows:
        ratio = f"{b / a:.2f}" if a else "-"
        table.add_row(plain(stage), kind, duration(a), duration(b), duration(b - a), ratio)
    return table
