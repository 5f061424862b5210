"""What all routes share: the engine behind a bounded door, one event stream a request, a bound on what a client may
leave unread. The only place of the server that calls the engine.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field

from omni_cli.config.load import LoadedConfig
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.request import OmniRequest, OutputChunk
from omni_cli.server.admission import Admission
from omni_cli.server.errors import ApiError
from omni_cli.server.metrics import Metrics
from omni_cli.server.timelines import Timelines
from omni_cli.trace.why import LastHeard

log = logging.getLogger("omni.server")


@dataclass(slots=True)
class Service:
    """`name` is what clients call the model."""

    name: str
    loaded: LoadedConfig
    plan: ExecutionPlan
    engine: OmniEngine
    admission: Admission
    metrics: Metrics
    timelines: Timelines
    max_buffered_bytes: int
    live: set[str] = field(default_factory=set)
    """The ids of the requests that the engine works on."""
    heard: LastHeard = field(default_factory=LastHeard)
    """Listens where `serve.debug_requests` is on."""
    sessions: int = 0
    """Realtime sessions that are open."""

    async def enter(self, requests: Sequence[OmniRequest], stack: AsyncExitStack) -> None:
        """Lets one call in, with all its choices; `stack` holds its place.

        Raises InputError for what the deployment cannot do, ApiError 429 or 503 at the door.
        """
        if self.engine.failure is not None:
            raise ApiError(503, "the server is broken and takes no request: its orchestrator has failed", "broken")
        for request in requests:
            self.engine.check(request)
        await stack.enter_async_context(self.admission.place())

    def end_all(self, reason: str) -> None:
        """Who waits is turned away, and what is in flight cancelled; clients hear of both."""
        self.admission.turn_away(reason)
        for request_id in tuple(self.live):
            self.engine.cancel(request_id, reason)

    async def chunks(
        self, request: OmniRequest, dropped: asyncio.Event | None = None
    ) -> AsyncGenerator[OutputChunk, None]:
        """All pieces of a request's outputs; closing the generator cancels what is left of it.

        Raises RequestError if the request fails. The engine's stream passes a buffer of its own, so that a client that
        does not read holds up nobody; for one that has more than `max_buffered_bytes` unread when a further piece
        comes, the request ends and `dropped` is set. An answer that is sent as a whole has no such client, and no
        `dropped`.
        """
        buffer: asyncio.Queue[tuple[OutputChunk, int] | Exception | None] = asyncio.Queue()
        unread = 0

        async def fill() -> None:
            nonlocal unread
            try:
                async with aclosing(self.engine.generate(request)) as chunks:
                    async for chunk in chunks:
                        if dropped is not None and unread > self.max_buffered_bytes:
                            log.warning("%s: %d bytes unread, the client is dropped", request.request_id, unread)
                            dropped.set()
                            return
                        size = _size(chunk)
                        unread += size
                        buffer.put_nowait((chunk, size))
                buffer.put_nowait(None)
            except Exception as error:
                buffer.put_nowait(error)

        filling = asyncio.ensure_future(fill())
        self.live.add(request.request_id)
        try:
            while (item := await buffer.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                unread -= item[1]
                yield item[0]
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
            self.live.discard(request.request_id)
            self.timelines.leave(request.request_id)


def _size(chunk: OutputChunk) -> int:
    media = sum(tensor.data.nbytes for tensor in chunk.payload.tensors) if chunk.payload is not None else 0
    return media + len(chunk.text)
