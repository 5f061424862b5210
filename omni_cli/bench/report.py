"""What a measurement has found: tables for people, a document for programs, a section of a page of documentation."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_cli.artifacts.atomic import write_text
from omni_cli.bench.figure import Figure, number
from omni_cli.streams import say
from omni_cli.table import print_fitting, stdout

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A header and its rows, of text."""

Facts = tuple[tuple[str, str], ...]
"""(name, value) pairs for people."""

_HEADER = ("figure", "median", "middle half", "1 % to 99 %", "aim", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`command` repeats the measurement, `name` is the page's section, `details` what the document has beside them."""

    command: str
    name: str
    digest: str
    machine: Facts
    tables: Sequence[Table]
    details: Mapping[str, Any]
    notes: Sequence[str] = ()

    def print(self) -> None:
        for header, rows in self.tables:
            print_fitting(header, rows)
        for line in (*self.notes, f"plan: {self.digest}", *(f"{name}: {value}" for name, value in self.machine)):
            stdout().print(line)

    def json(self) -> str:
        known = {"command": self.command, "plan_digest": self.digest, "machine": dict(self.machine)}
        return json.dumps({**known, **self.details}, ensure_ascii=False, indent=2) + "\n"

    def markdown(self) -> str:
        lines = [" ".join((f"Measured by `{self.command}`.", *self.notes)), ""]
        for header, rows in self.tables:
            lines += [f"| {' | '.join(line)} |" for line in (header, ("---",) * len(header), *rows)]
            lines.append("")
        facts = "; ".join(f"{name} {value}" for name, value in self.machine)
        return "\n".join([*lines, f"Plan `{self.digest[:16]}`. Machine: {facts}.", ""])

    def write(self, *paths: Path | None) -> None:
        """As JSON, into each file that there is. Raises ArtifactError if one cannot be written."""
        for path in paths:
            if path is not None:
                write_text(path, self.json())

    def put_into(self, page: Path | None) -> None:
        """Raises ArtifactError if the page cannot be written."""
        if page is not None:
            text = page.read_text(encoding="utf-8") if page.exists() else ""
            write_text(page, replace_section(text, self.name, self.markdown()))
            say(f"written to {page}")


def replace_section(text: str, name: str, section: str) -> str:
    """`text` with what is between the marks of `name` replaced, or, if it has none, with it at the end."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    block = f"{begin}\n{section.strip()}\n{end}"
    found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if found.search(text):
        return found.sub(lambda match: block, text, count=1)
    return f"{text.rstrip()}\n\n{block}\n".lstrip("\n")


def aims(figures: Sequence[Figure]) -> Table:
    """A row for each figure: its spread, its aim and whether it is met."""
    return _HEADER, [_row(figure) for figure in figures]


def _row(figure: Figure) -> tuple[str, ...]:
    def span(low: float, high: float) -> str:
        return f"{number(figure.quantile(low))} to {number(figure.quantile(high))}"

    return (
        figure.title,
        f"{number(figure.median)} {figure.unit}",
        span(0.25, 0.75),
        span(0.01, 0.99),
        "" if figure.aim is None else f"{figure.aim} {figure.unit}",
        {None: "", True: "met", False: "not met"}[figure.met],
    )
