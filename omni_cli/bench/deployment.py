"""Stage processes for the time of a measurement, and work over their engines."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from omni_cli.launch.launcher import LocalLauncher
from omni_cli.launch.lifetime import lifetime
from omni_cli.launch.running import RunningStages
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.plan.spec import stage_specs
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import Listener
from omni_cli.runtime.fanout import Fanout
from omni_cli.trace.frame import run_started
from omni_cli.trace.recorder import Recorder
from stages.config import StageSpec
from stages.worker.bootstrap import RunStage


@dataclass(frozen=True, slots=True)
class Deployment:
    plan: ExecutionPlan
    running: RunningStages
    listener: Listener


@contextmanager
def deployed(
    plan: ExecutionPlan,
    interrupts: Interrupts,
    *listeners: Listener,
    trace: Path | None = None,
    specs: Sequence[StageSpec] = (),
    run_stage: RunStage | None = None,
) -> Iterator[Deployment]:
    """The plan's processes, ready, as `omni run` has them; stopped on leaving, when the trace, if any, is whole.

    `specs` are started in place of the plan's own; `run_stage` replaces the worker.
    """
    run_id = secrets.token_hex(4)
    with ExitStack() as stack:
        recorder = None if trace is None else Recorder(trace)
        if recorder is not None:
            stack.callback(recorder.close)
            listeners = (recorder, *listeners)
        listener = Fanout(*listeners)
        launcher = LocalLauncher(
            plan,
            specs or stage_specs(plan, run_id),
            listener=listener,
            on_progress=lambda line: None,
            run_stage=run_stage,
        )
        begun = run_started(plan, run_id, datetime.now().astimezone())
        held = lifetime(
            launcher,
            interrupts,
            listener=listener,
            started=begun,
            events=lambda: 0 if recorder is None else recorder.events,
        )
        yield Deployment(plan, stack.enter_context(held), listener)


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
