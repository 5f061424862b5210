"""Options that take several numbers: `--concurrency 1,4,8`."""

from collections.abc import Callable
from typing import TypeVar

import typer

MOST = 10_000  # callers, rows, or arrivals a second: all of a load's requests are made up before it

Number = TypeVar("Number", int, float)


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """`1,4,8` as numbers above 0, none of which a machine could not hold."""
    try:
        found = tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found or not all(0 < number <= MOST for number in found):
        raise typer.BadParameter(f"{text!r}: give numbers above 0, of {MOST} at most, as 1,4,8", param_hint=option)
    return found
