"""How full a stage's steps were, from what they say of themselves: rows, ages, prefill beside decode, counters."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from stages.events import StepDone

FRAMES_COMPUTED = "frames_computed"  # a counter of the frames that a stage has put through its network


@dataclass(slots=True)
class Batches:
    """All steps of a stage, whichever of its processes ran them.

    `mixed` steps hold prefill and decode. `ages` is the most requests, admitted at different times, in one step that
    had one of them in prefill. `counters` are the runner's, summed; `units` are the stage's own.
    """

    stage: str
    steps: int = 0
    rows: int = 0
    units: int = 0
    mixed: int = 0
    ages: int = 0
    counters: Counter[str] = field(default_factory=Counter)

    @property
    def rows_a_step(self) -> float:
        return self.rows / self.steps if self.steps else 0.0

    @property
    def frames_a_unit(self) -> float | None:
        """Frames computed over frames emitted: 1 where none is decoded twice. None for a stage without frames."""
        return self.counters[FRAMES_COMPUTED] / self.units if self.units and FRAMES_COMPUTED in self.counters else None

    def take(self, step: StepDone, admitted_ns: Mapping[int, int]) -> None:
        """Adds a step; `admitted_ns` says of each request when it was admitted."""
        phases = {row.phase for row in step.rows}
        self.steps += 1
        self.rows += len(step.rows)
        self.units += sum(row.units for row in step.rows)
        self.mixed += {"prefill", "decode"} <= phases
        if "prefill" in phases:
            self.ages = max(self.ages, len({admitted_ns[row.uid] for row in step.rows if row.uid in admitted_ns}))
        self.counters.update(dict(step.counters))
