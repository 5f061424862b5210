"""The driver by itself: a request that has ended is reported whatever comes while its files are written."""

import asyncio
import threading

from omni_cli.batch.driver import BatchDriver
from omni_cli.batch.task import Task
from omni_cli.errors import InputError


class SlowDelivery:
    """Writes until it is let go."""

    def __init__(self) -> None:
        self.writing, self.go_on = threading.Event(), threading.Event()

    def deliver(self, attempt):
        self.writing.set()
        self.go_on.wait()
        return attempt.task.request_id


def test_a_cancellation_while_files_are_written_waits_for_them_and_reports_the_request():
    delivery, reported = SlowDelivery(), []

    async def main() -> None:
        driver = BatchDriver(None, delivery, window=1, on_chunk=lambda chunk: None, on_result=reported.append)
        task = Task(request_id="a", error=InputError("refused"))
        work = asyncio.ensure_future(driver.run([task, Task(request_id="b", error=InputError("refused"))]))
        await asyncio.to_thread(delivery.writing.wait)
        work.cancel()
        await asyncio.sleep(0)
        delivery.go_on.set()
        await asyncio.wait([work])
        assert work.cancelled()

    asyncio.run(main())
    assert reported == ["a"]
