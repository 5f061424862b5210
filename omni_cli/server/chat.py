"""POST /v1/chat/completions: text and audio of one answer as one choice, whole or as deltas."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from omni_cli.runtime.request import OmniRequest, OutputChunk
from omni_cli.server import sse
from omni_cli.server.errors import bad_request
from omni_cli.server.leaving import event_stream, unless_client_leaves
from omni_cli.server.logprobs import PlacedLog, TokenLogs, chat_logprobs
from omni_cli.server.openapi import OF_A_CALL, content
from omni_cli.server.prepare import Prepared, Preparer
from omni_cli.server.protocol import ChatRequest
from omni_cli.server.service import Service
from omni_cli.server.sound import Sound, audio_format, b64
from omni_cli.server.system import TheService, TheTraceparent, check_model, not_supported
from omni_cli.trace.summary import type_of

router = APIRouter()

AUDIO_LIVES_S = 3600  # how long an answer's audio id is said to be good for; nothing is kept on the server


@dataclass(slots=True)
class Choice:
    """One answer as it grows."""

    request: OmniRequest
    sound: Sound | None
    index: int
    logs: TokenLogs = field(default_factory=TokenLogs)
    fresh: list[PlacedLog] = field(default_factory=list)
    text: str = ""
    reason: str | None = None
    prompt_tokens: int = 0
    text_tokens: int = 0
    audio_tokens: int = 0
    expires_at: int = field(default_factory=lambda: int(time.time()) + AUDIO_LIVES_S)

    @property
    def audio_id(self) -> str:
        return f"audio_{self.request.request_id}"

    def take(self, chunk: OutputChunk) -> dict[str, Any]:
        """Adds a piece; what a streaming client is told of it, empty if nothing. `fresh` has its tokens then."""
        self.fresh = self.logs.take(chunk) if chunk.modality == "text" else []
        if chunk.modality == "text":
            self.text += chunk.text
            self.text_tokens += chunk.units
            delta: dict[str, Any] = {"content": chunk.text} if chunk.text else {}
            if self.sound is not None and chunk.text:
                delta["audio"] = {"id": self.audio_id, "transcript": chunk.text}
        else:
            self.audio_tokens += chunk.units
            data = self.sound.push(chunk) if self.sound is not None else b""
            delta = {"audio": {"id": self.audio_id, "data": b64(data)}} if data else {}
        if chunk.eos:
            self.reason = "length" if "length" in (self.reason, chunk.reason) else "stop"
        return delta

    def end(self) -> None:
        """Raises ApiError 500 if sound was asked for and none has come."""
        if self.sound is not None:
            self.sound.require()

    def message(self) -> dict[str, Any]:
        """The whole answer, as a message."""
        content = self.text if "text" in self.request.outputs else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.sound is not None:
            message["audio"] = {
                "id": self.audio_id,
                "data": b64(self.sound.file()[0]),
                "expires_at": self.expires_at,
                "transcript": self.text,
            }
        return message


def usage(choices: list[Choice]) -> dict[str, Any]:
    """Tokens of all choices; the prompt counts once."""
    prompt = max((choice.prompt_tokens for choice in choices), default=0)
    text = sum(choice.text_tokens for choice in choices)
    audio = sum(choice.audio_tokens for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": text + audio,
        "total_tokens": prompt + text + audio,
        "completion_tokens_details": {"audio_tokens": audio, "text_tokens": text, "reasoning_tokens": 0},
    }


@router.post("/v1/chat/completions", responses={**OF_A_CALL, **content("application/json", "text/event-stream")})
async def chat_completions(
    body: ChatRequest, request: Request, service: TheService, traceparent: TheTraceparent
) -> Response:
    """An answer to a conversation, with the modalities that were asked for."""
    check_model(service, body.model)
    if not any(type_of(output) in ("text", "audio") for output in service.plan.outputs):
        raise not_supported(service, request.url.path)
    preparer: Preparer = request.app.state.preparer
    streamed = bool(body.stream)
    form = audio_format(body.audio.format if body.audio else "wav", param="audio.format", streamed=streamed)
    prepared = await preparer.chat(body, traceparent)
    choices = [make_choice(service, one, form, index) for index, one in enumerate(prepared.requests)]
    if streamed:
        dropped = asyncio.Event()
        bodies = _bodies(service, prepared, choices, body.with_usage, dropped)
        return await event_stream(request, service, prepared.requests, sse.events(bodies), dropped)
    await unless_client_leaves(request, collect(service, choices))
    return JSONResponse(_completion(service, prepared, choices))


def make_choice(service: Service, request: OmniRequest, form: Any, index: int) -> Choice:
    foreign = [output for output in request.outputs if type_of(output) not in ("text", "audio")]
    if foreign:
        raise bad_request(f"modalities: {', '.join(foreign)} is no part of a message", param="modalities")
    spoken = [output for output in request.outputs if type_of(output) == "audio"]
    if len(spoken) > 1:
        raise bad_request(f"modalities: one audio output at a time; got {', '.join(spoken)}", param="modalities")
    output = spoken[0] if spoken else None
    sound = Sound(service.plan.outputs[output], request.request_id, form) if output is not None else None
    return Choice(request=request, sound=sound, index=index)


async def collect(service: Service, choices: list[Choice]) -> None:
    async with AsyncExitStack() as held:
        await service.enter([choice.request for choice in choices], held)
        async with aclosing(pieces(service, choices)) as found:
            async for choice, chunk in found:
                choice.take(chunk)
    for choice in choices:
        choice.end()


async def pieces(
    service: Service, choices: Sequence[Choice], dropped: asyncio.Event | None = None
) -> AsyncGenerator[tuple[Choice, OutputChunk], None]:
    """Of all choices, as they come; they go to one client, for whom `dropped` is as in `Service.chunks`."""
    async with aclosing(sse.merged([service.chunks(choice.request, dropped) for choice in choices])) as chunks:
        async for at, chunk in chunks:
            choice = choices[at]
            if (timeline := service.timelines.of(choice.request.request_id)) is not None:
                choice.prompt_tokens = timeline.prompt_tokens
            yield choice, chunk


def _completion(service: Service, prepared: Prepared, choices: list[Choice]) -> dict[str, Any]:
    return {
        **_head(service, prepared, "chat.completion"),
        "choices": [
            {
                "index": c.index,
                "message": c.message(),
                "finish_reason": c.reason,
                "logprobs": chat_logprobs(c.logs.all) if c.logs.all else None,
            }
            for c in choices
        ],
        "usage": usage(choices),
    }


def _head(service: Service, prepared: Prepared, kind: str) -> dict[str, Any]:
    return {
        "id": prepared.id,
        "object": kind,
        "created": int(time.time()),
        "model": service.name,
        "system_fingerprint": service.plan.digest[:12],
        "seed": prepared.requests[0].seed,
    }


async def _bodies(
    service: Service, prepared: Prepared, choices: list[Choice], with_usage: bool, dropped: asyncio.Event
) -> AsyncGenerator[Mapping[str, Any], None]:
    head = _head(service, prepared, "chat.completion.chunk") | ({"usage": None} if with_usage else {})

    def body(
        choice: Choice, delta: Mapping[str, Any], reason: str | None = None, logs: Sequence[PlacedLog] = ()
    ) -> Mapping[str, Any]:
        told = chat_logprobs(logs) if logs else None
        piece = {"index": choice.index, "delta": delta, "finish_reason": reason, "logprobs": told}
        return {**head, "choices": [piece]}

    for choice in choices:
        yield body(choice, {"role": "assistant", "content": ""})
    async with aclosing(pieces(service, choices, dropped)) as found:
        async for choice, chunk in found:
            delta = choice.take(chunk)
            if delta or choice.fresh:
                yield body(choice, delta, logs=choice.fresh)
    for choice in choices:
        choice.end()
        spoken = choice.sound is not None
        yield body(choice, {"audio": {"expires_at": choice.expires_at}} if spoken else {}, choice.reason)
    if with_usage:
        yield {**head, "choices": [], "usage": usage(choices)}
