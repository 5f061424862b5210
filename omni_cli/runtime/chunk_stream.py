"""One request's pieces on their way from the orchestrator to its caller, within one event loop.

For one reader only. `asyncio.Queue` serves any number of them, at several times the cost a piece.
"""

import asyncio
from collections.abc import Sequence

from omni_cli.runtime.request import OutputChunk, RequestEnd


class ChunkStream:
    """Unbounded: what a caller does not take is bounded by the outputs of its request."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: list[OutputChunk | RequestEnd] = []
        self._reader: asyncio.Future[None] | None = None

    def put(self, item: OutputChunk | RequestEnd) -> None:
        self._items.append(item)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def take(self) -> Sequence[OutputChunk | RequestEnd]:
        """All that has come, in order; waits for something if there is nothing."""
        if not self._items:
            self._reader = self._loop.create_future()
            await self._reader
        items, self._items = self._items, []
        return items
