"""`omni bench run`: requests of one size through `OmniEngine`, at several loads in turn, in one deployment.

What a caller waits for is stamped in the caller; what a stage does, in the stage. A request that fails is counted and
named, and is part of no other figure.
"""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

from omni_cli.artifacts.atomic import write_text
from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.bench.alone import device_rates, peak_fact
from omni_cli.bench.level import SPREAD_NOTE, Drawing, Level, tables
from omni_cli.bench.load import Load
from omni_cli.bench.plot import draw
from omni_cli.bench.prepared import Prepared
from omni_cli.bench.report import Report
from omni_cli.bench.served import Piece, Served
from omni_cli.bench.sized import SizedRequests
from omni_cli.bench.steps import StepLog
from omni_cli.console import logging_to
from omni_cli.deployment import carry, deployed
from omni_cli.errors import OmniError
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan, StagePlan
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import Listener
from omni_cli.runtime.request import OutputChunk
from omni_cli.streams import say
from omni_cli.trace.summary import duration_s, type_of


@dataclass(slots=True, kw_only=True)
class Serving:
    """What is to be measured, and what was: a level for each load. `facts` by process are those of its start. `peak` is
    what one device of a stage that denoises can do, in FLOP/s, 0 if that does not matter. `keep` keeps pictures."""

    plan: ExecutionPlan
    requests: SizedRequests
    loads: tuple[Load, ...]
    peak: float = 0.0
    keep: bool = False
    levels: list[Level] = field(default_factory=list)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)

    def measure(self, interrupts: Interrupts, *listeners: Listener, trace: Path | None = None) -> None:
        """Starts the plan once for all loads. `levels` has those that were finished, whatever ends it."""
        log = StepLog(self.plan)
        devices = max([1, *(len(stage.replicas[0].devices) for stage in _denoisers(self.plan))])

        async def each_load(engine: OmniEngine) -> None:
            for load in self.loads:
                say(f"{load}: warming up")
                warm = await _carried(engine, self.requests.warm, load.warm_up)
                log.clear()
                say(f"{load}: {load.requests} requests")
                served = await _carried(engine, self.requests, load, keep=self.keep)
                drawing = Drawing(step_flop=self.requests.step_flop, peak=self.peak * devices)
                self.levels.append(Level.of(load, served, warm, log, self.requests.prefix, drawing))

        with deployed(self.plan, interrupts, log, *listeners, trace=trace) as deployment:
            self.facts = {process: dict(facts) for process, facts in log.facts.items()}
            carry(each_load, interrupts, deployment)


async def _carried(engine: OmniEngine, requests: SizedRequests, load: Load, *, keep: bool = False) -> list[Served]:
    served: list[Served] = []
    made = []
    for number in range(load.requests):  # before anyone waits for them
        made.append(requests.make(number))
        await asyncio.sleep(0)  # a signal ends this as well

    async def ask(number: int, due_ns: int) -> None:
        one = Served(number=number, start_ns=due_ns)
        served.append(one)
        try:
            async for chunk in engine.generate(made[number]):
                one.pieces.append(_piece(chunk))
                if keep and chunk.payload is not None:
                    one.picture = bytes(chunk.payload.tensor(chunk.modality).data)
        except OmniError as error:
            one.error = str(error)
        one.end_ns = time.monotonic_ns()
        one.check(requests.asked)

    await load.carry(ask, requests.seed)
    return served


def _piece(chunk: OutputChunk) -> Piece:
    plays_s = 0.0 if chunk.payload is None or type_of(chunk.modality) != "audio" else duration_s(chunk.payload)
    return Piece(t_ns=time.monotonic_ns(), modality=chunk.modality, units=chunk.units, plays_s=plays_s)


def bench_run(
    prepared: Prepared, serving: Serving, *, out: Path | None, json_to: Path | None, page: Path | None
) -> int:
    """Into a run folder. 0, or 1 if a request failed. OmniError for what cannot be started."""
    loaded, plan, requests = prepared.loaded, prepared.plan, serving.requests
    with Interrupts() as interrupts:
        folder = (
            RunFolder.create(recipe=loaded.recipe, started_at=prepared.now) if out is None else RunFolder.claim(out)
        )
        folder.keep_plan(plan.document())
        with logging_to(folder.path / "run.log", quiet=True):
            try:
                if requests.step_flop and not serving.peak:
                    serving.peak = device_rates(plan, _denoisers(plan)[0].name, interrupts).flop_per_s
                serving.measure(interrupts, trace=folder.trace if loaded.config.trace.enabled else None)
            finally:
                if serving.levels:
                    report = _report(prepared, serving)
                    report.print()
                    for level in serving.levels:
                        level.say_failures(str(level.load))
                    write_text(folder.path / "bench.svg", draw(serving.levels))
                    report.write(folder.path / "bench.json", json_to)
                    say(f"files: {folder.path}")
    _report(prepared, serving).put_into(page)
    return int(any(level.failed for level in serving.levels))


def _denoisers(plan: ExecutionPlan) -> list[StagePlan]:
    return [stage for stage in plan.stages if stage.execution_type == "diffusion"]


def _report(prepared: Prepared, serving: Serving) -> Report:
    requests = serving.requests
    details = {
        "processes": serving.facts,
        "workload": requests.document(),
        "levels": [level.document() for level in serving.levels],
    }
    section = ("run", "text") if requests.outputs == ("text",) else ("run",)
    notes = (str(requests), *requests.notes, SPREAD_NOTE)
    return prepared.report(section, tables(serving.levels), details, notes, machine=peak_fact(serving.peak))
