"""What is wrong with a configuration, all at once: per problem the dotted key, where it was written, what to do.

Must not decide what is wrong; it only words it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

COMMAND_LINE = "command line"
SCHEMA_DEFAULT = "schema default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`key` is a dotted key (or the word that is at fault), `where` a `file:line` or the command line."""

    key: str
    message: str
    where: str = ""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.key}{place}: {self.message}" if self.key else self.message


class Origins(Protocol):
    """Where values were written."""

    def where(self, key: str) -> str:
        """`file:line`, the command line, or the schema default, for a dotted key."""
        ...


def located(problems: Iterable[Problem], origins: Origins) -> tuple[Problem, ...]:
    """The problems, each with its place; what nobody wrote keeps an empty one."""
    return tuple(p if p.where else replace(p, where=_written(origins.where(p.key))) for p in problems)


def report(problems: Sequence[Problem], subject: str) -> str:
    """The message of an error about `subject` (`the configuration`): one line a problem."""
    lines = list(dict.fromkeys(str(problem) for problem in problems))
    if len(lines) == 1:
        return lines[0]
    return "\n".join([f"{len(lines)} problems in {subject}:", *(f"  {line}" for line in lines)])


def _written(where: str) -> str:
    return "" if where == SCHEMA_DEFAULT else where
