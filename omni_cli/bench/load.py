"""When requests are made: a closed loop of callers, or an open loop of arrivals. Knows nothing of what is asked."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import Random

Ask = Callable[[int, int], Awaitable[None]]
"""Makes request number n, which is due at this time (CLOCK_MONOTONIC, ns), and returns once it has ended."""


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
    draw, at_s, found = Random(seed), 0.0, []
    for _ in range(requests):
        at_s += draw.expovariate(rate)
        found.append(at_s)
    return tuple(found)


async def _together(work: Sequence[Awaitable[None]]) -> None:
    async def one(part: Awaitable[None]) -> None:
        await part

    try:
        async with asyncio.TaskGroup() as group:
            for part in work:
                group.create_task(one(part))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
