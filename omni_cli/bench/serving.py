"""`omni bench run`: requests of one size through `OmniEngine`, at several loads in turn, in one deployment.

What a caller waits for is stamped in the caller; what a stage does, in the stage. A request that fails is counted and
named, and is part of no other figure.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from omni_cli.bench.deployment import interruptible, plain, traced
from omni_cli.bench.level import Level, Load
from omni_cli.bench.load import closed_loop, open_loop, poisson_arrivals
from omni_cli.bench.served import Piece, Served
from omni_cli.bench.sized import SizedRequests
from omni_cli.bench.steps import StepLog
from omni_cli.errors import OmniError
from omni_cli.launch.running import RunningStages
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import Listener
from omni_cli.runtime.request import OutputChunk
from omni_cli.trace.summary import duration_s

Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Serving:
    """What is to be measured, and what was: a level for each load. `facts` by process are those of its start."""

    plan: ExecutionPlan
    requests: SizedRequests
    loads: tuple[Load, ...]
    levels: list[Level] = field(default_factory=list)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)

    def measure(self, interrupts: Interrupts, trace: Path | None, say: Say, *listeners: Listener) -> None:
        """Starts the plan once for all loads. `levels` has those that were finished, whatever ends it."""
        log = StepLog(self.plan)
        heard = (log, *listeners)
        deployed = (
            plain(self.plan, interrupts, *heard) if trace is None else traced(self.plan, interrupts, trace, *heard)
        )
        with deployed as (running, listener):
            self.facts = {process: dict(facts) for process, facts in log.facts.items()}
            asyncio.run(self._carry(running, listener, log, interrupts, say))

    async def _carry(
        self, running: RunningStages, listener: Listener, log: StepLog, interrupts: Interrupts, say: Say
    ) -> None:
        async with OmniEngine(self.plan, running, listener=listener) as engine:
            await interruptible(self._levels(engine, log, say), interrupts)

    async def _levels(self, engine: OmniEngine, log: StepLog, say: Say) -> None:
        for load in self.loads:
            say(f"{load}: warming up")
            warm = await _carried(
                engine, self.requests.warm, Load(callers=load.most_at_once, requests=load.most_at_once)
            )
            log.clear()
            say(f"{load}: {load.requests} requests")
            start_ns = time.monotonic_ns()
            served = await _carried(engine, self.requests, load)
            wall_s = (time.monotonic_ns() - start_ns) / 1e9
            self.levels.append(
                Level(
                    load=load,
                    wall_s=wall_s,
                    served=tuple(served),
                    warm_up_failed=sum(one.error is not None for one in warm),
                    prompt_tokens=tuple(log.prompt_tokens),
                    stages=log.loads(wall_s),
                )
            )


async def _carried(engine: OmniEngine, requests: SizedRequests, load: Load) -> list[Served]:
    served: list[Served] = []

    async def ask(number: int, due_ns: int) -> None:
        one = Served(number=number, start_ns=due_ns)
        served.append(one)
        await _ask(engine, requests, one)

    if load.rate is None:
        await closed_loop(load.requests, load.callers, ask)
    else:
        await open_loop(poisson_arrivals(load.requests, load.rate, requests.seed), ask)
    return served


async def _ask(engine: OmniEngine, requests: SizedRequests, one: Served) -> None:
    request = requests.make(one.number, f"{requests.seed}-{one.number}")
    try:
        async for chunk in engine.generate(request):
            one.pieces.append(_piece(chunk))
    except OmniError as error:
        one.error = str(error)
    one.end_ns = time.monotonic_ns()
    if one.error is None:
        asked = {output: requests.units(output) for output in request.outputs}
        wrong = [f"{one.units(o)} of {n} units of {o}" for o, n in asked.items() if n not in (None, one.units(o))]
        one.error = f"request {request.request_id} gave {', '.join(wrong)}" if wrong else None


def _piece(chunk: OutputChunk) -> Piece:
    plays_s = 0.0 if chunk.payload is None or chunk.modality == "text" else duration_s(chunk.payload)
    return Piece(t_ns=time.monotonic_ns(), modality=chunk.modality, units=chunk.units, plays_s=plays_s)
