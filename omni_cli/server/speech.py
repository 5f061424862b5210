"""POST /v1/audio/speech and GET /v1/audio/voices: a text, spoken. The model is asked to answer with just that text."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field, StrictStr
from starlette.requests import Request
from starlette.responses import Response

from omni_cli.server import sse
from omni_cli.server.chat import Choice, collect, make_choice, pieces, usage
from omni_cli.server.errors import ApiError
from omni_cli.server.leaving import event_stream, unless_client_leaves
from omni_cli.server.openapi import OF_A_CALL, content
from omni_cli.server.prepare import DEFAULT_VOICE, Preparer
from omni_cli.server.protocol import AudioOptions, ChatRequest, Message, Number, Said, Sampled
from omni_cli.server.service import Service
from omni_cli.server.sound import Sound, audio_format, b64
from omni_cli.server.system import TheService, TheTraceparent, check_model, require_output

router = APIRouter()

MEDIA_TYPES = {"pcm": "audio/pcm", "wav": "audio/wav"}
_ANSWERS = (*MEDIA_TYPES.values(), "audio/flac", "audio/ogg", "audio/mpeg", "text/event-stream")


class SpeechRequest(Sampled):
    """POST /v1/audio/speech."""

    input: Annotated[Said, Field(max_length=65_536)]
    voice: StrictStr | None = None
    response_format: StrictStr = "mp3"
    stream_format: Literal["audio", "sse"] | None = None
    instructions: StrictStr | None = None
    speed: Annotated[Number, Field(ge=0.25, le=4)] | None = None


@router.get("/v1/audio/voices")
async def voices(service: TheService) -> dict[str, Any]:
    """The speakers of the checkpoint; `default` is the one that speaks if none is named."""
    return {"object": "list", "voices": [DEFAULT_VOICE, *service.plan.voices]}


@router.post("/v1/audio/speech", response_class=Response, responses={**OF_A_CALL, **content(*_ANSWERS)})
async def speech(body: SpeechRequest, request: Request, service: TheService, traceparent: TheTraceparent) -> Response:
    """The text as sound: a file, a chunked body (`stream=true`), or events (`stream_format=sse`)."""
    check_model(service, body.model)
    require_output(service, "audio", request.url.path)
    if body.n not in (None, 1):
        raise ApiError(400, "n: speech is one recording", "unsupported_value", "n")
    if body.stream_options is not None:
        raise ApiError(400, "stream_options: not of this route", "unsupported_value", "stream_options")
    if body.speed not in (None, 1):
        raise ApiError(400, "speed: this model speaks at its own pace; leave it out", "unsupported_value", "speed")
    events = body.stream_format == "sse"
    streamed = events or bool(body.stream)
    form = audio_format(body.response_format, param="response_format", streamed=streamed)
    preparer: Preparer = request.app.state.preparer
    prepared = await preparer.chat(_as_chat(body), traceparent)
    choice = make_choice(service, prepared.requests[0], form, 0)
    if streamed:
        dropped = asyncio.Event()
        told = sse.events(_events(service, choice, dropped), done=False) if events else _bytes(service, choice, dropped)
        media_type = sse.MEDIA_TYPE if events else MEDIA_TYPES[form]
        return await event_stream(request, service, prepared.requests, told, dropped, media_type)
    await unless_client_leaves(request, collect(service, [choice]))
    data, media_type = sound_of(choice).file()
    return Response(data, media_type=media_type)


def _as_chat(body: SpeechRequest) -> ChatRequest:
    messages = [Message(role="user", content=body.input)]
    if body.instructions:
        messages.insert(0, Message(role="system", content=body.instructions))
    shared = {name: getattr(body, name) for name in Sampled.model_fields if name in body.model_fields_set}
    shared.pop("stream", None)
    return ChatRequest(messages=messages, modalities=["audio"], audio=AudioOptions(voice=body.voice), **shared)


def sound_of(choice: Choice) -> Sound:
    if choice.sound is None:
        raise ApiError(500, "speech was prepared without sound", "internal_error")
    return choice.sound


async def _bytes(service: Service, choice: Choice, dropped: asyncio.Event) -> AsyncGenerator[bytes, None]:
    """The body as it comes. A failure breaks the transfer off: bytes of sound have no other word for it."""
    sound = sound_of(choice)
    async with aclosing(pieces(service, [choice], dropped)) as found:
        async for _, chunk in found:
            if data := sound.push(chunk):
                yield data
    sound.require()


async def _events(service: Service, choice: Choice, dropped: asyncio.Event) -> AsyncGenerator[Mapping[str, Any], None]:
    sound = sound_of(choice)
    async with aclosing(pieces(service, [choice], dropped)) as found:
        async for _, chunk in found:
            choice.audio_tokens += chunk.units
            if data := sound.push(chunk):
                yield {"type": "speech.audio.delta", "audio": b64(data)}
    sound.require()
    counted = usage([choice])
    names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens", "total_tokens": "total_tokens"}
    yield {"type": "speech.audio.done", "usage": {ours: counted[theirs] for theirs, ours in names.items()}}
