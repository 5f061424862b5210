"""A point of a trace, as a person names it: a time into the run, a line's ordinal, or a kind of event."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from omni_cli.errors import TraceError
from omni_cli.trace.codec import KINDS, TraceEvent
from omni_cli.trace.frame import happened_ns

_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|ms|us)")
_UNIT_NS = {"s": 1e9, "ms": 1e6, "us": 1e3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """One of the three is set. An event is part of what is before the point, and so is what is decided on it."""

    after_ns: int | None = None
    ordinal: int | None = None
    kind: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Until":
        """`1.5s`, `300ms`, `412`, `request_failed`. Raises TraceError."""
        time = _TIME.fullmatch(text.strip())
        if time is not None:
            return cls(after_ns=round(float(time[1]) * _UNIT_NS[time[2]]))
        if text.isdecimal():
            return cls(ordinal=int(text))
        if text in KINDS.values():
            return cls(kind=text)
        raise TraceError(
            f"--until {text!r}: is no time into the run (1.5s, 300ms), no ordinal (412) and no kind of event "
            f"({', '.join(sorted(KINDS.values()))})"
        )

    def here(self, lines: Iterable[TraceEvent], following: TraceEvent | None, start_ns: int) -> bool:
        """Whether the point lies between these lines, which may be only those that are of interest, and `following`."""
        if self.kind is not None:
            return any(KINDS[type(line.event)] == self.kind for line in lines)
        if following is None:
            return True
        if self.ordinal is not None:
            return following.ordinal > self.ordinal
        return self.after_ns is not None and happened_ns(following.event) - start_ns > self.after_ns
