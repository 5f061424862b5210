"""Server-sent events as OpenAI's clients read them: `data: {json}` blocks, `[DONE]` last. A failure is an event too."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from omni_cli.server.errors import api_error

log = logging.getLogger("omni.server")

T = TypeVar("T")

MEDIA_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"


def event(body: Mapping[str, Any]) -> bytes:
    """One event. The JSON is ASCII, so no code point is ever split between two chunks of a transfer."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode("ascii") + b"\n\n"


async def events(bodies: AsyncGenerator[Mapping[str, Any], None], *, done: bool = True) -> AsyncGenerator[bytes, None]:
    """The bodies as events. What fails after the 200 becomes an `error` event; nothing follows it but the end."""
    try:
        async with aclosing(bodies):
            async for body in bodies:
                yield event(body)
    except Exception as error:
        found = api_error(error)
        if found.code == "internal_error":
            log.error("a stream failed", exc_info=error)
        yield event({**found.body(), "status": found.status})
    if done:
        yield DONE


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Items of all sources as they come, each with the place of its source. The first failure ends them all."""
    queue: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
    over = object()

    async def pump(at: int, source: AsyncGenerator[Any, None]) -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    await queue.put((at, item))
            await queue.put(over)
        except Exception as error:
            await queue.put(error)

    pumps = [asyncio.ensure_future(pump(at, source)) for at, source in enumerate(sources)]
    try:
        left = len(pumps)
        while left:
            item = await queue.get()
            if item is over:
                left -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
