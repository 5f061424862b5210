"""What is wrong with a configuration, all at once: per problem the dotted key, where it was written, what to do.

Must not decide what is wrong; it only words it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

COMMAND_LINE = "command line"
SCHEMA_DEFAULT = "schema default"

# What pydantic says in its own terms, by its name of the error.
_OBJECT = "should be an object with keys and values"
_WORDS = {
    "missing": "is missing",
    "string_type": "should be text",
    "string_unicode": "holds a lone surrogate, which is no character",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "none_required": "should be null",
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "too_short": "has a length of {actual_length}, less than {min_length}",
    "too_long": "has a length of {actual_length}, more than {max_length}",
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "dataclass_type": _OBJECT,
    "dict_type": _OBJECT,
    "mapping_type": _OBJECT,
    "union_tag_not_found": "has no {discriminator}",
    "union_tag_invalid": "has the {discriminator} '{tag}', not one of {expected_tags}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`key` is a dotted key (or the word that is at fault), `where` a `file:line` or the command line."""

    key: str
    message: str
    where: str = ""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.key}{place}: {self.message}" if self.key else self.message


def worded(error: Mapping[str, Any]) -> str:
    """What pydantic found, an entry of its `errors()`, as words behind a key."""
    if error["type"] in _WORDS:
        return _WORDS[error["type"]].format(**error.get("ctx", {}))
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ").removeprefix("String ")
    return message[:1].lower() + message[1:]


class Origins(Protocol):
    """Where values were written."""

    def where(self, key: str) -> str:
        """`file:line`, the command line, or the schema default, for a dotted key."""
        ...


def located(problems: Iterable[Problem], origins: Origins) -> tuple[Problem, ...]:
    """The problems, each with its place; what nobody wrote keeps an empty one."""
    written = ((p, p.where or origins.where(p.key)) for p in problems)
    return tuple(replace(p, where="" if where == SCHEMA_DEFAULT else where) for p, where in written)


def report(problems: Sequence[Problem], subject: str) -> str:
    """The message of an error about `subject` (`the configuration`): one line a problem."""
    lines = list(dict.fromkeys(str(problem) for problem in problems))
    if len(lines) == 1:
        return lines[0]
    return "\n".join([f"{len(lines)} problems in {subject}:", *(f"  {line}" for line in lines)])
