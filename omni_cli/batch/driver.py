"""Drives tasks through the engine: a window of them at a time, each to its end, whatever the others do."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from omni_cli.artifacts.records import ResultRecord, Status
from omni_cli.batch.delivery import Delivery
from omni_cli.batch.task import Task
from omni_cli.errors import OmniError
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.outputs import OutputAssembler
from omni_cli.runtime.request import OmniRequest, OutputChunk, RequestError


class BatchDriver:
    """At most `window` requests are admitted at once. `on_chunk(task, chunk)` hears every piece as it comes,
    `on_result(record)` every end, both in the event loop."""

    def __init__(
        self,
        engine: OmniEngine,
        delivery: Delivery,
        *,
        window: int,
        on_chunk: Callable[[Task, OutputChunk], None],
        on_result: Callable[[ResultRecord], None],
    ) -> None:
        self._engine = engine
        self._delivery = delivery
        self._window = window
        self._on_chunk = on_chunk
        self._on_result = on_result
        self._writing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="write artifacts")

    async def run(self, tasks: Iterable[Task]) -> None:
        """All tasks, each to its end. Cancelling this cancels the requests in flight, and their ends are written."""
        waiting = iter(tasks)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._window):
                    group.create_task(self._work(waiting))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._writing.shutdown()

    async def _work(self, waiting: Iterator[Task]) -> None:
        for task in waiting:
            await self._one(task)

    async def _one(self, task: Task) -> None:
        assembler = OutputAssembler(task.outputs)
        request: OmniRequest | None = None
        error: OmniError | None = None
        status: Status = "failed"
        start = time.monotonic()
        metrics: dict[str, float] = {}
        try:
            request = task.request()
            start = time.monotonic()
            async for chunk in self._engine.generate(request):
                if chunk.units and f"first_{chunk.modality}_s" not in metrics:
                    metrics[f"first_{chunk.modality}_s"] = time.monotonic() - start
                assembler.add(chunk)
                self._on_chunk(task, chunk)
            status = "finished"
        except OmniError as failure:
            error = failure
            if isinstance(failure, RequestError) and failure.end.outcome == "cancelled":
                status = "cancelled"
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        finally:
            metrics["total_s"] = time.monotonic() - start
            write = partial(
                self._delivery.deliver,
                task,
                assembler.outputs,
                error=error,
                status=status,
                seed=request.seed if request is not None else None,
                metrics=metrics,
            )
            self._on_result(await asyncio.shield(asyncio.wrap_future(self._writing.submit(write))))
