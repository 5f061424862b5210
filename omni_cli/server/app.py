"""Puts the server together: routes, the doors in front of them (key, size, origin), and one handler for every error."""

import hmac
import json
from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_cli.config.schema import ServeConfig
from omni_cli.errors import OmniError
from omni_cli.inputs.limits import InputLimits
from omni_cli.server import (
    chat,
    completions,
    debug,
    image_edits,
    images,
    playground,
    realtime,
    speech,
    system,
    tokens,
    unserved,
)
from omni_cli.server.errors import ApiError, api_error, invalid
from omni_cli.server.fetching import Fetcher
from omni_cli.server.leaving import ClientLeft
from omni_cli.server.media import MediaSource
from omni_cli.server.openapi import App, declared
from omni_cli.server.prepare import Preparer
from omni_cli.server.service import Service

_HTTP_CODES = {400: "invalid_body", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}

_MODULES = (system, debug, chat, completions, speech, images, image_edits, tokens, realtime, unserved, playground)
_ROUTERS = tuple(module.router for module in _MODULES)

KEY_PROTOCOL = "openai-insecure-api-key."
OPEN_PATHS = ("/health", "/health/live", "/health/ready", "/version", "/")


def create_app(service: Service, serve: ServeConfig, keys: Sequence[str]) -> FastAPI:
    """The ASGI application over one service. `keys` are the API keys that are let in; none lets everybody in."""
    app = App(title="omni", docs_url=None, redoc_url=None, responses=declared(401) if keys else None)
    app.state.service = service
    app.state.preparer = preparer(service, serve)
    for router in _ROUTERS:
        app.include_router(router)
    for kind in (RequestValidationError, HTTPException, ClientLeft, ApiError, OmniError, ExceptionGroup, Exception):
        app.add_exception_handler(kind, _failed)
    app.add_middleware(BodyLimit, max_bytes=serve.max_body_bytes)
    if keys:
        app.add_middleware(ApiKeys, keys=tuple(keys))
    if serve.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(serve.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    return app


def preparer(service: Service, serve: ServeConfig) -> Preparer:
    fetcher = Fetcher(serve.media_hosts, timeout_s=serve.media_timeout_s, max_bytes=serve.max_body_bytes)
    root = Path(serve.media_root).absolute() if serve.media_root is not None else None
    limits = InputLimits(
        max_image_pixels=serve.max_image_pixels, max_audio_s=serve.max_audio_s, max_video_s=serve.max_video_s
    )
    return Preparer(service=service, serve=serve, media=MediaSource(fetcher=fetcher, root=root), limits=limits)


def answer(error: ApiError) -> Response:
    """In ASCII: a message may repeat what was sent, a lone surrogate included."""
    body = json.dumps(error.body()).encode("ascii")
    return Response(body, status_code=error.status, headers=error.all_headers(), media_type="application/json")


async def _failed(request: Request, error: Exception) -> Response:
    """Of an exception that nobody expected, the server itself logs the traceback."""
    match error:
        case ClientLeft():
            return Response(status_code=499)
        case RequestValidationError():  # what FastAPI would answer with 422, in OpenAI's shape
            return answer(invalid(error.errors()))
        case HTTPException():
            return answer(_refusal(request, error))
    return answer(api_error(error))


def _refusal(request: Request, error: HTTPException) -> ApiError:
    """By Starlette itself."""
    code = _HTTP_CODES.get(error.status_code, "http_error")
    message = f"{request.method} {request.url.path}: {error.detail}"
    headers = dict(error.headers or {})
    if error.status_code == 405:  # a path has a route for each of its methods, and Starlette names those of one
        routes = (route for router in _ROUTERS for route in router.routes if isinstance(route, Route))
        found = (route for route in routes if route.matches(request.scope)[0] != Match.NONE)
        headers["Allow"] = ", ".join(sorted({method for route in found for method in route.methods or ()}))
    return ApiError(error.status_code, message, code, headers=headers)


class BodyLimit:
    """Refuses a body over the limit with 413, by its declared length or while it comes in."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_bytes:
            await answer(ApiError(413, self._message(), "body_too_large"))(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_bytes:
                raise HTTPException(413, self._message())  # the only kind that reading a body passes on as it is
            return message

        await self._app(scope, counted, send)

    def _message(self) -> str:
        return f"the body is larger than {self._max_bytes} bytes (serve.max_body_bytes)"


class ApiKeys:
    """Lets in who presents a key as `Authorization: Bearer KEY`; health and the page itself stay open.

    The page of a browser cannot set a header of a WebSocket: it may name the key as a subprotocol, as OpenAI's do.
    """

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = tuple(key.encode() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or self._known(scope):
            await self._app(scope, receive, send)
            return
        refusal = ApiError(401, "this server needs an API key: Authorization: Bearer KEY", "invalid_api_key")
        refusal.headers["WWW-Authenticate"] = "Bearer"
        await answer(refusal)(scope, receive, send)

    def _known(self, scope: Scope) -> bool:
        """Compares with every key in constant time, also after one has matched."""
        given = dict(scope["headers"]).get(b"authorization", b"")
        tokens = [given[7:]] if given[:7].lower() == b"bearer " else []
        for protocol in scope.get("subprotocols", ()):
            if protocol.startswith(KEY_PROTOCOL):
                tokens.append(protocol.removeprefix(KEY_PROTOCOL).encode("utf-8", "surrogateescape"))
        return sum(hmac.compare_digest(token, key) for token in tokens for key in self._keys) > 0
