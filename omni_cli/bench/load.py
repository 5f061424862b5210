"""When requests are made: a closed loop of callers, or an open loop of arrivals. Knows nothing of what is asked."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

Ask = Callable[[int, int], Awaitable[None]]
"""Makes request number n, which is due at this time (CLOCK_MONOTONIC, ns), and returns once it has ended."""

_LEAST_REQUESTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`requests` in all: by `callers`, each of whom waits for an answer before the next request, or, where `rate` is
    given, `rate` a second on average, whoever waits."""

    requests: int
    callers: int = 0
    rate: float | None = None

    @classmethod
    def all_of(cls, concurrency: Sequence[int], rates: Sequence[float], requests: int | None) -> tuple["Load", ...]:
        """One of each; if their `requests` are not given, twice as many as come at once, or what comes in 10 s."""
        closed = (cls(callers=n, requests=requests or max(_LEAST_REQUESTS, 2 * n)) for n in concurrency)
        opened = (cls(rate=rate, requests=requests or max(_LEAST_REQUESTS, round(10 * rate))) for rate in rates)
        return (*closed, *opened)

    @property
    def warm_up(self) -> "Load":
        """What comes at once, or in one second, at once."""
        most = min(self.requests, self.callers if self.rate is None else max(1, round(self.rate)))
        return Load(callers=most, requests=most)

    async def carry(self, ask: Ask, seed: int) -> None:
        if self.rate is None:
            await closed_loop(self.requests, self.callers, ask)
        else:
            await open_loop(poisson_arrivals(self.requests, self.rate, seed), ask)

    def __str__(self) -> str:
        return f"{self.callers} at once" if self.rate is None else f"{self.rate:g} a second"


async def closed_loop(requests: int, callers: int, ask: Ask) -> None:
    """Each of `callers` makes one request after the other until all are made. What `ask` raises ends it."""
    numbers = iter(range(requests))

    async def call(numbers: Iterator[int]) -> None:
        for number in numbers:
            await ask(number, time.monotonic_ns())

    await _together([call(numbers) for _ in range(callers)])


async def open_loop(arrivals_s: Sequence[float], ask: Ask) -> None:
    """Request n is made `arrivals_s[n]` after the start, however many are still running."""
    start_ns = time.monotonic_ns()

    async def arrive(number: int, due_ns: int) -> None:
        await asyncio.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        await ask(number, due_ns)

    await _together([arrive(number, start_ns + int(at_s * 1e9)) for number, at_s in enumerate(arrivals_s)])


def poisson_arrivals(requests: int, rate: float, seed: int) -> tuple[float, ...]:
    """Seconds after the start, `rate` of them a second on average, the gaps distributed exponentially."""
    draw = Random(seed)
    return tuple(accumulate(draw.expovariate(rate) for _ in range(requests)))


async def _together(work: Sequence[Coroutine[None, None, None]]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for part in work:
                group.create_task(part)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
