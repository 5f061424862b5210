"""Results for people on stdout, as plain tables. Everything that is no result goes to stderr, through `console`."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

# Where there is no terminal nothing is cut off or wrapped: the reader is a file, a pipe or a test.
_WIDE = 100_000


def stdout() -> Console:
    """Prints text as it is: no markup, no colours of its own."""
    wide = None if sys.stdout.isatty() else _WIDE
    return Console(file=sys.stdout, width=wide, highlight=False, markup=False, emoji=False)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> Table:
    """Columns without lines, so that the output can be read by `awk` as well. Long cells are folded on a terminal."""
    made = Table(*header, title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in made.columns:
        column.overflow = "fold"
    for row in rows:
        made.add_row(*row)
    return made
