"""The stages of a plan from their start to their end, with the whole trace of a run; and work over their engines.

Knows neither what the work is nor who asked for it.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from omni_cli.launch.launcher import LocalLauncher
from omni_cli.launch.running import RunningStages
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.plan.spec import stage_specs
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import CONTROL, Listener, RunFinished
from omni_cli.runtime.fanout import fanout
from omni_cli.trace.frame import run_started
from omni_cli.trace.recorder import Recorder
from stages.config import StageSpec
from stages.worker.bootstrap import RunStage


@dataclass(frozen=True, slots=True)
class Deployment:
    """Stages that are ready; `listener` hands their events on to all who listen."""

    plan: ExecutionPlan
    running: RunningStages
    listener: Listener


@contextmanager
def deployed(
    plan: ExecutionPlan,
    interrupts: Interrupts,
    *listeners: Listener,
    trace: Path | None = None,
    started_at: datetime | None = None,
    media_bytes: int = 0,
    specs: Sequence[StageSpec] = (),
    run_stage: RunStage | None = None,
) -> Iterator[Deployment]:
    """The plan's processes, ready; stopped on leaving, when the trace, if there is one, is whole.

    Its first event and the listeners' is the run's start (`started_at`, else now), its last one the run's end, also of
    a start that failed. `media_bytes` as in `stage_specs`; `specs` are started in place of the plan's own; `run_stage`
    replaces the worker.
    """
    with ExitStack() as stack:
        recorder = None if trace is None else Recorder(trace)
        if recorder is not None:
            stack.callback(recorder.close)
            listeners = (recorder.hear, *listeners)
        listener = fanout(*listeners)
        specs = specs or stage_specs(plan, secrets.token_hex(4), media_bytes=media_bytes)
        listener(CONTROL, run_started(plan, specs[0].run_id, started_at or datetime.now().astimezone()))
        running: RunningStages | None = None
        try:
            # At its end it raises a signal that comes meanwhile, after all is done.
            with LocalLauncher(plan, specs, listener=listener, run_stage=run_stage).start() as running:
                interrupts.register(running)
                yield Deployment(plan, running, listener)
        finally:
            live_slots = running.live_slots if running is not None else 0
            events = recorder.events if recorder is not None else 0
            listener(CONTROL, RunFinished(t_ns=time.monotonic_ns(), live_slots=live_slots, events=events))


def carry(work: Callable[..., Coroutine[Any, Any, None]], interrupts: Interrupts, *deployments: Deployment) -> None:
    """Does the work over one engine for each deployment. A signal cancels it, and is raised as `Interrupted` once it
    has ended."""

    async def over_engines() -> None:
        async with AsyncExitStack() as stack:
            engines = [
                await stack.enter_async_context(OmniEngine(one.plan, one.running, listener=one.listener))
                for one in deployments
            ]
            loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work(*engines))
            with interrupts.handled_by(lambda: loop.call_soon_threadsafe(task.cancel)):
                try:
                    await task
                except asyncio.CancelledError:
                    interrupts.check()
                    raise

    asyncio.run(over_engines())
