"""The stages of a plan from their start to their end, and the tasks that they carry meanwhile. The trace covers it."""

import time
from collections.abc import Sequence
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
from omni_cli.deployment import carry, deployed
from omni_cli.launch.signals import Interrupts
from omni_cli.runtime.engine import OmniEngine


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
            self._run(valid)

    def _run(self, tasks: Sequence[Task]) -> None:
        state = self._state

        async def drive(engine: OmniEngine) -> None:
            driver = BatchDriver(
                engine,
                self._delivery,
                window=2 * max(stage.max_batch * len(stage.replicas) for stage in state.plan.entries),
                on_chunk=self._display.chunk,
                on_result=self._take,
            )
            try:
                await driver.run(tasks)
            finally:
                state.dead = dict(engine.dead)

        with deployed(
            state.plan,
            self._interrupts,
            self._display.event,
            trace=_free_trace(state.folder) if self._trace else None,
            started_at=state.started_at,
            # Room for the largest request and one that is still being read.
            media_bytes=2 * max(task.media_bytes for task in tasks),
        ) as deployment:
            carry(drive, self._interrupts, deployment)

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
