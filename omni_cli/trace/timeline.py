"""One line of time: a request's way through a stage, drawn as wide as it is given room. Knows nothing of requests."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style

from omni_cli.trace.summary import QUEUE, RUN, STALL, WAIT, Phase

# Different marks, since a pipe has no colours.
MARKS = {QUEUE: "·", WAIT: "-", RUN: "█", STALL: "░"}
STYLES = {QUEUE: "dim", WAIT: "yellow", RUN: "green", STALL: "red"}
_RANK = {mark: rank for rank, mark in enumerate((QUEUE, STALL, WAIT, RUN))}


class Timeline:
    """Phases on an axis from `start_ns` to `end_ns`. A short step still gets one character: it did happen."""

    def __init__(self, phases: Iterable[Phase], start_ns: int, end_ns: int) -> None:
        self._phases = sorted(phases, key=lambda phase: _RANK[phase.kind])
        self._start_ns = start_ns
        self._length_ns = max(1, end_ns - start_ns)

    def cells(self, width: int) -> list[str | None]:
        """The kind of phase in each of `width` columns; where several share one, the one that did the most wins."""
        cells: list[str | None] = [None] * width
        for phase in self._phases:
            first = min(width - 1, (phase.start_ns - self._start_ns) * width // self._length_ns)
            last = max(first + 1, -(-(phase.end_ns - self._start_ns) * width // self._length_ns))
            for column in range(max(0, first), min(width, last)):
                cells[column] = phase.kind
        return cells

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for kind in self.cells(options.max_width):
            yield Segment(MARKS.get(kind or "", " "), Style.parse(STYLES.get(kind or "", "none")))
        yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(8, options.max_width)
