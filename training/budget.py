"""A training run that is given seconds, not steps: where it stands, and the learning rate there."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_TOLD_S, _KEPT_S = 10.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """`step` counts from 0; `done` is the share of the time that has passed, 0 to 1; `told` every ten seconds, `kept`
    every minute: time to say how it goes, and to keep what there is."""

    step: int
    done: float
    told: bool = False
    kept: bool = False

    def rate(self, peak: float, *, warm_steps: int = 200, flat: float = 0.5) -> float:
        """The learning rate: linear warm-up over steps, flat, then linear decay to 2 % of the peak over time."""
        decay = 1.0 if self.done < flat else max(0.02, (1 - self.done) / (1 - flat))
        return peak * min(1.0, (self.step + 1) / warm_steps) * decay


def moments(seconds: float, clock: Callable[[], float] = time.monotonic) -> Iterator[Moment]:
    """One moment a step until the time is up; at least one."""
    start, step = clock(), 0
    passed = before = 0.0
    while step == 0 or passed < seconds:
        told = step == 0 or passed // _TOLD_S > before // _TOLD_S
        yield Moment(step=step, done=min(1.0, passed / seconds), told=told, kept=passed // _KEPT_S > before // _KEPT_S)
        before, passed, step = passed, clock() - start, step + 1
