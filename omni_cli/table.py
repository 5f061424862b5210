"""Results for people on stdout, as plain tables. Everything that is no result goes to stderr, through `console`."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

# Where there is no terminal nothing is cut off or wrapped: the reader is a file, a pipe or a test.
_WIDE = 100_000
_GAP = 3  # between two columns


def stdout() -> Console:
    """Prints text as it is: no markup, no colours of its own."""
    wide = None if sys.stdout.isatty() else _WIDE
    return Console(file=sys.stdout, width=wide, highlight=False, markup=False, emoji=False)


def print_fitting(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One table; or where the terminal is too narrow for it, several, each with some of the columns. What tells the
    rows apart stands in all of them."""
    console = stdout()
    for columns in fitting([max(map(len, cells)) for cells in zip(header, *rows, strict=True)], rows, console.width):
        console.print(table([header[at] for at in columns], [[row[at] for at in columns] for row in rows]))
        console.print()


def fitting(widths: Sequence[int], rows: Sequence[Sequence[str]], most: int) -> list[list[int]]:
    """The columns of each table, by number, so that none is wider than `most` unless one column alone makes it so."""
    named = next((n for n in range(1, len(widths)) if len({tuple(row[:n]) for row in rows}) == len(rows)), 1)
    names = list(range(named))
    found = [list(names)]
    for column in range(named, len(widths)):
        taken = sum(widths[at] + _GAP for at in (*found[-1], column)) - _GAP
        if taken > most and len(found[-1]) > named:
            found.append(list(names))
        found[-1].append(column)
    return found


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Columns without lines, so that the output can be read by `awk` as well. Long cells are folded on a terminal."""
    made = Table(*header, box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for column in made.columns:
        column.overflow = "fold"
    for row in rows:
        made.add_row(*row)
    return made
