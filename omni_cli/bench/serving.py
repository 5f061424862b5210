"""`omni bench run`: requests of one size through `OmniEngine`, at several loads in turn, in one deployment.

What a caller waits for is stamped in the caller; what a stage does, in the stage. A request that fails is counted and
named, and is part of no other figure.
"""

import asyncio
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from omni_cli.artifacts.atomic import write_text
from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.bench.deployment import carry, deployed
from omni_cli.bench.level import SPREAD_NOTE, Level, tables
from omni_cli.bench.load import Load
from omni_cli.bench.plot import draw
from omni_cli.bench.prepared import Prepared
from omni_cli.bench.report import Report
from omni_cli.bench.served import AUDIO, Piece, Served
from omni_cli.bench.sized import SizedRequests
from omni_cli.bench.steps import StepLog
from omni_cli.console import logging_to
from omni_cli.errors import OmniError
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import Listener
from omni_cli.runtime.request import OutputChunk
from omni_cli.streams import say
from omni_cli.trace.summary import duration_s, type_of


@dataclass(slots=True, kw_only=True)
class Serving:
    """What is to be measured, and what was: a level for each load. `facts` by process are those of its start."""

    plan: ExecutionPlan
    requests: SizedRequests
    loads: tuple[Load, ...]
    levels: list[Level] = field(default_factory=list)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)

    def measure(self, interrupts: Interrupts, *listeners: Listener, trace: Path | None = None) -> None:
        """Starts the plan once for all loads. `levels` has those that were finished, whatever ends it."""
        log = StepLog(self.plan)

        async def each_load(engine: OmniEngine) -> None:
            for load in self.loads:
                say(f"{load}: warming up")
                warm = await _carried(engine, self.requests.warm, load.warm_up)
                log.clear()
                say(f"{load}: {load.requests} requests")
                served = await _carried(engine, self.requests, load)
                self.levels.append(Level.of(load, served, warm, log, self.requests.prefix))

        with deployed(self.plan, interrupts, log, *listeners, trace=trace) as deployment:
            self.facts = {process: dict(facts) for process, facts in log.facts.items()}
            carry(each_load, interrupts, deployment)


async def _carried(engine: OmniEngine, requests: SizedRequests, load: Load) -> list[Served]:
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
        except OmniError as error:
            one.error = str(error)
        one.end_ns = time.monotonic_ns()
        one.check(requests.asked)

    await load.carry(ask, requests.seed)
    return served


def _piece(chunk: OutputChunk) -> Piece:
    plays_s = 0.0 if chunk.payload is None or chunk.modality == "text" else duration_s(chunk.payload)
    return Piece(t_ns=time.monotonic_ns(), modality=chunk.modality, units=chunk.units, plays_s=plays_s)


def bench_run(
    prepared: Prepared, serving: Serving, *, out: Path | None, json_to: Path | None, page: Path | None
) -> int:
    """Into a run folder. 0, or 1 if a request failed. OmniError for what cannot be started."""
    loaded, plan = prepared.loaded, prepared.plan
    with Interrupts() as interrupts:
        folder = (
            RunFolder.create(recipe=loaded.recipe, started_at=prepared.now) if out is None else RunFolder.claim(out)
        )
        write_text(folder.plan, json.dumps(plan.document(), ensure_ascii=False, indent=2) + "\n")
        with logging_to(folder.path / "run.log", quiet=True):
            try:
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


def _report(prepared: Prepared, serving: Serving) -> Report:
    requests = serving.requests
    size, outputs = requests.size, ", ".join(requests.outputs)
    frames = f", {size.frames} frames" if AUDIO in map(type_of, requests.outputs) else ""
    workload = (
        f"A request has {size.prompt_tokens} prompt tokens and asks for {outputs}: "
        f"{size.text_tokens} text tokens{frames}; end tokens ignored, no two requests alike."
    )
    details = {
        "processes": serving.facts,
        "workload": {**asdict(size), "outputs": list(requests.outputs), "seed": requests.seed},
        "levels": [level.document() for level in serving.levels],
    }
    section = ("run", "text") if requests.outputs == ("text",) else ("run",)
    return prepared.report(section, tables(serving.levels), details, (workload, SPREAD_NOTE))
