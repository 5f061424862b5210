"""Stage processes for the time of a measurement, with a trace or without."""

import asyncio
import secrets
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from omni_cli.launch.launcher import LocalLauncher
from omni_cli.launch.lifetime import lifetime
from omni_cli.launch.running import RunningStages
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.plan.spec import stage_specs
from omni_cli.runtime.events import Listener
from omni_cli.runtime.fanout import Fanout
from omni_cli.trace.frame import run_started
from omni_cli.trace.recorder import Recorder
from stages.config import StageSpec
from stages.worker.bootstrap import RunStage


@contextmanager
def started(
    plan: ExecutionPlan,
    specs: Sequence[StageSpec],
    interrupts: Interrupts,
    *,
    listener: Listener,
    run_stage: RunStage | None = None,
) -> Iterator[RunningStages]:
    """The plan's processes, ready; stopped on leaving. `run_stage` replaces the worker."""
    running = LocalLauncher(plan, specs, listener=listener, on_progress=lambda line: None, run_stage=run_stage).start()
    interrupts.register(running)
    try:
        yield running
    finally:
        running.stop()


@contextmanager
def plain(
    plan: ExecutionPlan, interrupts: Interrupts, *listeners: Listener
) -> Iterator[tuple[RunningStages, Listener]]:
    """As `omni run trace.enabled=false` has it: events are made, and nobody but `listeners` listens."""
    listener = Fanout(*listeners)
    with started(plan, stage_specs(plan, secrets.token_hex(4)), interrupts, listener=listener) as running:
        yield running, listener


@contextmanager
def traced(
    plan: ExecutionPlan, interrupts: Interrupts, path: Path, *listeners: Listener
) -> Iterator[tuple[RunningStages, Listener]]:
    """As `omni run` has it: the trace is whole once this is left."""
    run_id = secrets.token_hex(4)
    recorder = Recorder(path)
    try:
        listener = Fanout(recorder, *listeners)
        launcher = LocalLauncher(plan, stage_specs(plan, run_id), listener=listener, on_progress=lambda line: None)
        begun = run_started(plan, run_id, datetime.now().astimezone())
        with lifetime(
            launcher, interrupts, listener=listener, started=begun, events=lambda: recorder.events
        ) as running:
            yield running, listener
    finally:
        recorder.close()


async def interruptible(work: Coroutine[None, None, None], interrupts: Interrupts) -> None:
    """Does the work. A signal cancels it, and is raised as `Interrupted` once it has ended."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    with interrupts.handled_by(lambda: loop.call_soon_threadsafe(task.cancel)):
        try:
            await task
        except asyncio.CancelledError:
            interrupts.check()
            raise
