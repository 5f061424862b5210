"""Requests a second with the trace on, and what the trace costs: blocks with and without it in turn, in one run.

Two deployments of one plan stand side by side, and one of them works at a time. Neighbouring blocks make a pair, and
their order alternates, so that a machine whose speed drifts moves both of them.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from omni_cli.bench.deployment import interruptible, plain, traced
from omni_cli.bench.effort import Effort
from omni_cli.bench.figure import Aim, Figure
from omni_cli.bench.workload import Workload
from omni_cli.errors import TraceError
from omni_cli.launch.running import RunningStages
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import Listener
from omni_cli.trace.check import check
from omni_cli.trace.reader import TraceReader

AIM_REQUESTS_PER_S = 300.0
AIM_TRACE_PERCENT = 3.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Block:
    """`cpu_s` is what all processes of the deployment took, the parent's threads included."""

    wall_s: float
    cpu_s: float


class Side:
    """One of the two deployments, under load."""

    def __init__(self, engine: OmniEngine, running: RunningStages) -> None:
        self._load = Workload(engine)
        # linux/posix-timers.h: the number of a process's CPU clock is made of its pid
        self._clocks = [(~replica.pid << 3) | 2 for replica in running.replicas]

    async def block(self, requests: int) -> Block:
        cpu_s = self._cpu_s()
        wall_s = await self._load.block(requests)
        return Block(wall_s, self._cpu_s() - cpu_s)

    def _cpu_s(self) -> float:
        return time.process_time() + sum(map(time.clock_gettime, self._clocks))


@dataclass(slots=True)
class Throughput:
    """What was measured: pairs of blocks of `requests` each, and what was found wrong with the trace."""

    requests: int
    traced: list[Block] = field(default_factory=list)
    plain: list[Block] = field(default_factory=list)

    def figures(self) -> tuple[Figure, ...]:
        pairs = list(zip(self.traced, self.plain, strict=True))
        return (
            Figure(
                key="requests_per_s",
                title="requests, trace on",
                unit="1/s",
                samples=tuple(self.requests / block.wall_s for block in self.traced),
                aim=Aim(kind="at least", limit=AIM_REQUESTS_PER_S),
            ),
            Figure(
                key="trace_cost_percent",
                title="cost of the trace, in time",
                unit="%",
                samples=tuple(100 * (on.wall_s / off.wall_s - 1) for on, off in pairs),
                aim=Aim(kind="at most", limit=AIM_TRACE_PERCENT),
            ),
            Figure(
                key="trace_cost_cpu_percent",
                title="cost of the trace, in CPU time",
                unit="%",
                samples=tuple(100 * (on.cpu_s / off.cpu_s - 1) for on, off in pairs),
            ),
            Figure(
                key="cpu_us_per_request",
                title="CPU time a request, all processes",
                unit="us",
                samples=tuple(1e6 * block.cpu_s / self.requests for block in self.traced),
            ),
        )


def measure_throughput(
    plan: ExecutionPlan, effort: Effort, interrupts: Interrupts, folder: Path, say: Say
) -> Throughput:
    """Takes both measures, and judges the trace of its own run. TraceError if that is not clean."""
    found = Throughput(requests=effort.requests)
    path = folder / "trace.jsonl"
    with traced(plan, interrupts, path) as on, plain(plan, interrupts) as off:
        asyncio.run(_alternate(plan, on, off, effort, interrupts, found, say))
    findings = check(TraceReader(path))
    if findings:
        raise TraceError(f"the trace of the benchmark itself is not clean: line {findings[0].line}: {findings[0].text}")
    return found


async def _alternate(
    plan: ExecutionPlan,
    on: tuple[RunningStages, Listener],
    off: tuple[RunningStages, Listener],
    effort: Effort,
    interrupts: Interrupts,
    found: Throughput,
    say: Say,
) -> None:
    async with AsyncExitStack() as stack:

        async def side(running: RunningStages, listener: Listener) -> Side:
            return Side(await stack.enter_async_context(OmniEngine(plan, running, listener=listener)), running)

        await interruptible(_pairs(await side(*on), await side(*off), effort, found, say), interrupts)


async def _pairs(on: Side, off: Side, effort: Effort, found: Throughput, say: Say) -> None:
    for side in (on, off):
        await side.block(effort.requests)  # warm
    for pair in range(effort.pairs):
        for side, blocks in ((on, found.traced), (off, found.plain))[:: 1 if pair % 2 else -1]:
            blocks.append(await side.block(effort.requests))
        say(f"requests: pair {pair + 1} of {effort.pairs}")
