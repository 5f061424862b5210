"""Drives tasks through the engine: a window of them at a time, each to its end, whatever the others do."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial

from omni_cli.artifacts.records import ResultRecord
from omni_cli.batch.attempt import Attempt
from omni_cli.batch.delivery import Delivery
from omni_cli.batch.task import Task
from omni_cli.errors import OmniError
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.request import OutputChunk


class BatchDriver:
    """At most `window` requests are admitted at once. `on_chunk(chunk)` hears every piece as it comes,
    `on_result(record)` every end, both in the event loop."""

    def __init__(
        self,
        engine: OmniEngine,
        delivery: Delivery,
        *,
        window: int,
        on_chunk: Callable[[OutputChunk], None],
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
            attempt = Attempt(task, time.monotonic)
            try:
                await self._drive(attempt)
                attempt.finish()
            except OmniError as error:
                attempt.fail(error)
            except asyncio.CancelledError:
                attempt.cancel()
                raise
            except Exception as error:
                attempt.fail(OmniError(f"internal error: {type(error).__name__}: {error}"))
                raise
            finally:
                await self._deliver(attempt)

    async def _deliver(self, attempt: Attempt) -> None:
        """Writes what became of the request and says so; a cancellation meanwhile waits for it."""
        writing = asyncio.wrap_future(self._writing.submit(partial(self._delivery.deliver, attempt)))
        cancelled = False
        while not writing.done():
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                cancelled = True
        self._on_result(writing.result())
        if cancelled:
            raise asyncio.CancelledError

    async def _drive(self, attempt: Attempt) -> None:
        task = attempt.task
        # What is not kept has media, which take their time to decode: not in the loop that all requests share.
        request = task.request() if task.keep is not None else await asyncio.to_thread(task.request)
        attempt.start(request)
        async with aclosing(self._engine.generate(request)) as chunks:
            async for chunk in chunks:
                attempt.add(chunk)
                self._on_chunk(chunk)
