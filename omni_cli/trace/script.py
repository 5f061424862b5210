"""The recorded lines in their order, with a view as far ahead as the control plane speaks without a pause.

A replay reads from it what its inputs were, and what was decided. Judges nothing.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

from omni_cli.runtime.events import CONTROL, Event
from omni_cli.trace.codec import TraceEvent

E = TypeVar("E", bound=Event)


class Script:
    """`head` is the next line, None at the end; `line` counts those before it, `passed` has them (until cleared)."""

    def __init__(self, events: Iterable[TraceEvent]) -> None:
        self._rest = iter(events)
        self._ahead: deque[TraceEvent] = deque()
        self.line = 0
        self.passed: list[TraceEvent] = []
        self.head: TraceEvent | None = next(self._rest, None)

    def pop(self) -> None:
        if self.head is not None:
            self.passed.append(self.head)
        self.line += 1
        self.head = self._ahead.popleft() if self._ahead else next(self._rest, None)

    def decided_ahead(self) -> Iterator[Event]:
        """From `head` on, what the control plane says before any stage speaks again."""
        if self.head is None or self.head.source != CONTROL:
            return
        yield self.head.event
        for index in range(1 << 62):
            if index == len(self._ahead):
                line = next(self._rest, None)
                if line is None:
                    return
                self._ahead.append(line)
            if self._ahead[index].source != CONTROL:
                return
            yield self._ahead[index].event

    def ahead(self, kind: type[E], uid: int) -> E | None:
        """The first decision of this kind about the request, if there is one ahead."""
        return next((e for e in self.decided_ahead() if isinstance(e, kind) and getattr(e, "uid", None) == uid), None)
