"""A client that leaves ends its request: end-of-file from the client counts as leaving, whatever it wanted to read."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from omni_cli.runtime.request import OmniRequest
from omni_cli.server import sse
from omni_cli.server.service import Service

T = TypeVar("T")


class ClientLeft(Exception):
    """Nobody is left to answer."""


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, unless the client leaves. The request's body must have been read before."""
    return await unless(_left(request.receive), work)


async def unless(left: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled, and ClientLeft raised, as soon as `left` returns."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(left)
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class EventStream(StreamingResponse):
    """A streamed body that ends with its client: its generator is closed at once when the client leaves or is
    `dropped`, and whatever happens `held` is, after it."""

    def __init__(
        self, body: AsyncGenerator[bytes, None], media_type: str, held: AsyncExitStack, dropped: asyncio.Event
    ) -> None:
        super().__init__(body, media_type=media_type, headers={"Cache-Control": "no-cache"})
        self._body = body
        self._held = held
        self._dropped = dropped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientLeft):
                await unless(self._dropped.wait(), unless(_left(receive), self.stream_response(send)))
        finally:
            await self._body.aclose()
            await self._held.aclose()


async def event_stream(
    request: Request,
    service: Service,
    requests: Sequence[OmniRequest],
    body: AsyncGenerator[bytes, None],
    dropped: asyncio.Event,
    media_type: str = sse.MEDIA_TYPE,
) -> EventStream:
    """What comes of the requests, once they are let in."""
    held = AsyncExitStack()
    await unless_client_leaves(request, service.enter(requests, held))
    return EventStream(body, media_type, held, dropped)
