"""A training run that is given seconds, not steps: where it stands, and the learning rate there."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """`step` counts from 0; `done` is the share of the time that has passed, 0 to 1."""

    step: int
    done: float

    def rate(self, peak: float, *, warm_steps: int = 200, flat: float = 0.5) -> float:
        """The learning rate: linear warm-up over steps, flat, then linear decay to 2 % of the peak over time."""
        decay = 1.0 if self.done < flat else max(0.02, (1 - self.done) / (1 - flat))
        return peak * min(1.0, (self.step + 1) / warm_steps) * decay


def moments(seconds: float, clock: Callable[[], float] = time.monotonic) -> Iterator[Moment]:
    """One moment a step until the time is up; at least one."""
    start, step = clock(), 0
    while step == 0 or clock() - start < seconds:
        yield Moment(step=step, done=min(1.0, (clock() - start) / seconds))
        step += 1
