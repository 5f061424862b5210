"""How many requests are worked on, how many may wait; one more is refused at once. It knows no HTTP and no stage."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from omni_cli.server.errors import ApiError

RETRY_AFTER_S = 1


class Admission:
    """First come, first served: `max_concurrency` places, `max_queue` waiting. For one event loop."""

    def __init__(self, max_concurrency: int, max_queue: int) -> None:
        self._places = max_concurrency
        self._max_queue = max_queue
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self.running = 0
        self.draining = False

    @property
    def capacity(self) -> int:
        """How many may be here, working or waiting."""
        return self._places + self._max_queue

    @property
    def waiting(self) -> int:
        return sum(not future.done() for future in self._waiting)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Waits for a place and holds it. Raises ApiError 429 if too many wait already, 503 while draining."""
        if self.draining:
            raise ApiError(503, "the server is shutting down", "draining", retry_after_s=RETRY_AFTER_S)
        if self.running < self._places and not self.waiting:
            self._enter()
        else:
            await self._wait()
        try:
            yield
        finally:
            self._leave()

    def drain(self) -> None:
        """From now on nobody new is taken; who runs or waits may go on."""
        self.draining = True

    def turn_away(self, reason: str) -> None:
        """Ends the waiting of all who wait, with ApiError 503."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(ApiError(503, reason, "draining", retry_after_s=RETRY_AFTER_S))

    async def idle(self) -> None:
        """Returns when nobody runs or waits."""
        await self._idle.wait()

    def _enter(self) -> None:
        self.running += 1
        self._idle.clear()

    async def _wait(self) -> None:
        if self.waiting >= self._max_queue:
            raise ApiError(
                429,
                f"{self.running} requests are running and {self.waiting} waiting, as many as this server takes "
                "(serve.max_concurrency, serve.max_queue)",
                "overloaded",
                retry_after_s=RETRY_AFTER_S,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._idle.clear()
        try:
            await turn  # the place is handed over by who leaves
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave()
            raise
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1
        if not self.running:
            self._idle.set()
