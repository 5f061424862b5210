"""The stages of a plan from their start to their end, and the tasks that they carry meanwhile. The trace covers it."""

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omni_cli.artifacts.records import ResultRecord
from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.artifacts.writer import ArtifactWriter
from omni_cli.batch.attempt import Attempt
from omni_cli.batch.delivery import Delivery
from omni_cli.batch.display import Display
from omni_cli.batch.driver import BatchDriver
from omni_cli.batch.state import RunState
from omni_cli.batch.task import Task
from omni_cli.launch.launcher import LocalLauncher
from omni_cli.launch.lifetime import lifetime
from omni_cli.launch.running import RunningStages
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.spec import stage_specs
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import Listener
from omni_cli.runtime.fanout import Fanout
from omni_cli.trace.frame import run_started
from omni_cli.trace.recorder import Recorder


class Session:
    """Carries tasks once. Every end goes to `state`, the run folder and `display`."""

    def __init__(
        self, state: RunState, writer: ArtifactWriter, interrupts: Interrupts, display: Display, *, trace: bool
    ) -> None:
        self._state = state
        self._delivery = Delivery(writer, state.plan)
        self._interrupts = interrupts
        self._display = display
        self._trace = trace

    def carry(self, todo: Sequence[Task]) -> None:
        """All of `todo`, to their ends. What was refused has its end at once; no stage starts for it."""
        for task in todo:
            if task.error is not None:
                attempt = Attempt(task, time.monotonic)
                attempt.fail(task.error)
                self._take(self._delivery.deliver(attempt))
        valid = [task for task in todo if task.error is None]
        if valid:
            with self._traced() as recorder:
                self._run(valid, recorder)

    @contextmanager
    def _traced(self) -> Iterator[Recorder | None]:
        recorder = Recorder(_free_trace(self._state.folder)) if self._trace else None
        try:
            yield recorder
        finally:
            if recorder is not None:
                recorder.close()

    def _run(self, tasks: Sequence[Task], recorder: Recorder | None) -> None:
        run_id = secrets.token_hex(4)
        # Room for the largest request and one that is still being read.
        media_bytes = 2 * max(task.media_bytes for task in tasks)
        specs = stage_specs(self._state.plan, run_id, media_bytes=media_bytes)
        listener = Fanout(*([recorder] if recorder is not None else []), self._display.event)
        with lifetime(
            LocalLauncher(self._state.plan, specs, listener=listener),
            self._interrupts,
            listener=listener,
            started=run_started(self._state.plan, run_id, self._state.started_at),
            events=lambda: recorder.events if recorder is not None else 0,
        ) as running:
            asyncio.run(self._drive(tasks, running, listener))

    async def _drive(self, tasks: Sequence[Task], running: RunningStages, listener: Listener) -> None:
        async with OmniEngine(self._state.plan, running, listener=listener) as engine:
            driver = BatchDriver(
                engine,
                self._delivery,
                window=2 * max(stage.max_batch * len(stage.replicas) for stage in self._state.plan.entries),
                on_chunk=self._display.chunk,
                on_result=self._take,
            )
            work = asyncio.ensure_future(driver.run(tasks))
            loop = asyncio.get_running_loop()
            with self._interrupts.handled_by(lambda: loop.call_soon_threadsafe(work.cancel)):
                try:
                    await work
                except asyncio.CancelledError:
                    self._interrupts.check()
                    raise
                finally:
                    self._state.dead = dict(engine.dead)

    def _take(self, record: ResultRecord) -> None:
        self._state.add(record)
        self._display.result(record)


def _free_trace(folder: RunFolder) -> Path:
    """`trace.jsonl`, or for a resumed run `trace-2.jsonl` and so on."""
    path, number = folder.trace, 1
    while path.exists():
        number += 1
        path = folder.trace.with_name(f"trace-{number}.jsonl")
    return path
