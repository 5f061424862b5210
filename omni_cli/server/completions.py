"""POST /v1/completions: text in, text out. The prompt is one user turn of the model's chat template."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from omni_cli.server import sse
from omni_cli.server.chat import Choice, collect, pieces, usage
from omni_cli.server.errors import bad_request
from omni_cli.server.leaving import event_stream, unless_client_leaves
from omni_cli.server.logprobs import PlacedLog, completion_logprobs
from omni_cli.server.openapi import OF_A_CALL, content
from omni_cli.server.prepare import Preparer
from omni_cli.server.protocol import CompletionRequest
from omni_cli.server.service import Service
from omni_cli.server.system import TheService, TheTraceparent, check_model, require_output

router = APIRouter()


@router.post("/v1/completions", responses={**OF_A_CALL, **content("application/json", "text/event-stream")})
async def completions(
    body: CompletionRequest, request: Request, service: TheService, traceparent: TheTraceparent
) -> Response:
    """Continues nothing: it answers, as chat does, with the text alone."""
    check_model(service, body.model)
    require_output(service, "text", request.url.path)
    if body.echo:
        raise bad_request("echo: the prompt is not repeated by this server", param="echo")
    if isinstance(body.prompt, list) and len(body.prompt) != 1:
        raise bad_request("prompt: one prompt a call", param="prompt")
    prompt = body.prompt if isinstance(body.prompt, str) else body.prompt[0]
    preparer: Preparer = request.app.state.preparer
    prepared = await preparer.completion(body, prompt, traceparent)
    choices = [Choice(request=one, sound=None, index=index) for index, one in enumerate(prepared.requests)]
    head = {"id": prepared.id, "object": "text_completion", "created": int(time.time()), "model": service.name}
    if body.stream:
        dropped = asyncio.Event()
        if body.with_usage:
            head["usage"] = None
        bodies = _bodies(service, head, choices, body.with_usage, dropped)
        return await event_stream(request, service, prepared.requests, sse.events(bodies), dropped)
    await unless_client_leaves(request, collect(service, choices))
    return JSONResponse(
        {**head, "choices": [_piece(c, c.text, c.reason, c.logs.all) for c in choices], "usage": usage(choices)}
    )


def _piece(choice: Choice, text: str, reason: str | None, logs: Sequence[PlacedLog] = ()) -> dict[str, Any]:
    told = completion_logprobs(logs) if logs else None
    return {"index": choice.index, "text": text, "finish_reason": reason, "logprobs": told}


async def _bodies(
    service: Service, head: Mapping[str, Any], choices: list[Choice], with_usage: bool, dropped: asyncio.Event
) -> AsyncGenerator[Mapping[str, Any], None]:
    async with aclosing(pieces(service, choices, dropped)) as found:
        async for choice, chunk in found:
            choice.take(chunk)
            if chunk.text or choice.fresh:
                yield {**head, "choices": [_piece(choice, chunk.text, None, choice.fresh)]}
    for choice in choices:
        yield {**head, "choices": [_piece(choice, "", choice.reason)]}
    if with_usage:
        yield {**head, "choices": [], "usage": usage(choices)}
