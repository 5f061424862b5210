"""The interface of a scheduler: what a stage does next, with what batch. Pure data in and out; no clock, no tensors.

`schedule()` picks rows, the runner computes them, `update()` takes the results; as in vLLM v1's scheduler interface.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from stages.config import EdgeMode
from stages.events import FinishReason
from stages.messages import StageRequest

Phase = Literal["prefill", "decode", "forward", "denoise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A request's share of the next step: from `position`, at most `units` of the stage's own units."""

    uid: int
    phase: Phase
    position: int
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProgress:
    """What became of a row: `units` done, `finished` with a reason, or `failed`."""

    uid: int
    units: int
    finished: FinishReason | None = None
    failed: bool = False


class Scheduler(Protocol):
    """Owns which requests this stage holds and where each of them stands."""

    def add(self, request: StageRequest, modes: Mapping[str, EdgeMode]) -> bool:
        """Takes a request on; `modes` gives the input contract per producer. True if it is ready to run already."""
        ...

    def extend(self, uid: int, producer: str, units: int, eos: bool) -> bool:
        """An input stream has grown by `units`. True the first time that the input contract is satisfied by it."""
        ...

    def abort(self, uid: int) -> None:
        """Forgets a request, at any point. An unknown uid is an error of the caller (KeyError)."""
        ...

    def schedule(self, credits: Mapping[str, int], held: frozenset[int]) -> SchedulerOutput | None:
        """The next step, or None if nothing can run.

        `credits` is the number of free slots per consumer for incremental edges; a row takes one of each of its
        consumers. Rows in `held` (a put of theirs waits for space) are skipped.
        """
        ...

    def update(self, progress: tuple[RowProgress, ...]) -> None:
        """Takes in what a step did; finished and failed requests are forgotten."""
        ...

    def __contains__(self, uid: int) -> bool: ...

    def __len__(self) -> int: ...
