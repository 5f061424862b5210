"""POST /v1/images/generations: pictures of a prompt, each with its seed; refused for a recipe that draws none.

How pictures are answered is `edits`' way as well.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from omni_cli.artifacts.image import encode
from omni_cli.plan.drawing import drawn_after, generation, warnings_of
from omni_cli.runtime.request import OmniRequest
from omni_cli.server import sse
from omni_cli.server.errors import ApiError, bad_request
from omni_cli.server.leaving import event_stream, unless_client_leaves
from omni_cli.server.openapi import OF_A_CALL
from omni_cli.server.prepare import Preparer
from omni_cli.server.protocol import ImageEditRequest, ImageRequest
from omni_cli.server.service import Service
from omni_cli.server.sound import b64
from omni_cli.server.system import TheService, TheTraceparent, check_model, require_output
from stages.payload import Payload

router = APIRouter()

IMAGE = "image"
_IDLE = {
    "quality": ("auto", "standard"),
    "style": (),
    "moderation": ("auto",),
    "guidance_scale": (),
    "input_fidelity": (),
}
"""What no model here follows, and the values with which that makes no difference."""
_QUALITY = 100  # OpenAI's default of `output_compression`


@router.post("/v1/images/generations", response_class=JSONResponse, responses=OF_A_CALL)
async def generations(
    body: ImageRequest, request: Request, service: TheService, traceparent: TheTraceparent
) -> Response:
    """As OpenAI's. Beside it: `seed` of each picture, which draws it again alone, and `warnings`."""
    check_model(service, body.model)
    require_output(service, IMAGE, request.url.path)
    return await answer(request, service, body, traceparent)


async def answer(
    request: Request, service: Service, body: ImageRequest, traceparent: str | None, pictures: Sequence[bytes] = ()
) -> Response:
    """The pictures, or their events. `pictures` are files to start from. Raises ApiError or InputError."""
    _refuse_unsupported(body)
    preparer: Preparer = request.app.state.preparer
    prepared, idle = await preparer.images(body, traceparent, pictures)
    if body.stream:
        dropped = asyncio.Event()
        bodies = _events(service, body, prepared.requests[0], [*idle, *_unused(body)], dropped)
        return await event_stream(request, service, prepared.requests, sse.events(bodies, done=False), dropped)
    payloads = await unless_client_leaves(request, _drawn(service, prepared.requests))
    files = await asyncio.gather(
        *(
            asyncio.to_thread(_file, service, body, one, payload)
            for one, payload in zip(prepared.requests, payloads, strict=True)
        )
    )
    params = prepared.requests[0].image
    warnings = dict.fromkeys([*idle, *_unused(body), *(note for payload in payloads for note in warnings_of(payload))])
    return JSONResponse(
        {
            "created": int(time.time()),
            "data": [{"b64_json": data, "seed": one.seed} for one, data in zip(prepared.requests, files, strict=True)],
            "size": None if params is None else f"{params.width}x{params.height}",
            "output_format": body.output_format or "png",
            "background": "opaque",
            "usage": _usage(service, prepared.requests, payloads),
            "warnings": list(warnings),
        }
    )


def _refuse_unsupported(body: ImageRequest) -> None:
    """ApiError 400 for what would change the answer and is not done here."""
    for name, value, why in (
        ("response_format", "url", "no pictures are kept to be fetched; take b64_json"),
        ("output_format", "gif", "take png, jpeg or webp"),
        ("output_format", "svg", "take png, jpeg or webp"),
        ("background", "transparent", "pictures are opaque"),
    ):
        if getattr(body, name) == value:
            raise bad_request(f"{name}: {value} is not supported: {why}", param=name, code="unsupported_value")
    if body.partial_images and not body.stream:
        raise bad_request("partial_images: they come with stream=true", param="partial_images")
    if body.stream and body.n not in (None, 1):
        raise bad_request("n: one picture at a time is streamed", param="n", code="unsupported_value")


def _unused(body: ImageRequest) -> Iterator[str]:
    for name, idle in _IDLE.items():
        value = getattr(body, name, None)
        if value is not None and value not in idle:
            hint = "; true_cfg_scale has one, beside negative_prompt" if name == "guidance_scale" else ""
            yield f"{name} has no effect on this model{hint}"
    if body.output_compression is not None and body.output_format in (None, "png"):
        yield "output_compression has no effect on png, which is lossless"


def _usage(service: Service, requests: Sequence[OmniRequest], payloads: Sequence[Payload]) -> dict[str, Any]:
    """Tokens of the prompt, of each picture's reading of it; and latent tokens, of which each picture has so many."""
    able = service.plan.image
    read, seen = (
        sum(int(value) for payload in payloads for name, value in payload.meta if name == counted)
        for counted in ("prompt_tokens", "seen_tokens")
    )
    sizes = (one.image.width * one.image.height for one in requests if one.image is not None)
    drawn = 0 if able is None else sum(sizes) // able.multiple**2
    return {
        "input_tokens": read,
        "input_tokens_details": {"text_tokens": read - seen, "image_tokens": seen},
        "output_tokens": drawn,
        "total_tokens": read + drawn,
    }


async def _drawn(service: Service, requests: tuple[OmniRequest, ...]) -> list[Payload]:
    """All pictures of a call, in order. Raises what the engine raises."""
    found: dict[int, Payload] = {}
    async with AsyncExitStack() as held:
        await service.enter(requests, held)
        async with aclosing(sse.merged([service.chunks(one) for one in requests])) as pieces:
            async for at, chunk in pieces:
                if chunk.payload is not None:
                    found[at] = chunk.payload
    if len(found) < len(requests):
        raise ApiError(500, f"{len(requests) - len(found)} pictures ended without a pixel", "internal_error")
    return [found[at] for at in range(len(requests))]


async def _events(
    service: Service, body: ImageRequest, request: OmniRequest, notes: list[str], dropped: asyncio.Event
) -> AsyncGenerator[Mapping[str, Any], None]:
    """The picture on its way, as often as was asked for, and then the picture."""
    shown, kind = 0, "image_edit" if isinstance(body, ImageEditRequest) else "image_generation"
    async with aclosing(service.chunks(request, dropped)) as chunks:
        async for chunk in chunks:
            if chunk.payload is None:
                continue
            data = await asyncio.to_thread(_file, service, body, request, chunk.payload)
            params = request.image
            told = {
                "b64_json": data,
                "created_at": int(time.time()),
                "size": None if params is None else f"{params.width}x{params.height}",
                "quality": "auto",
                "background": "opaque",
                "output_format": body.output_format or "png",
                "seed": request.seed,
            }
            if chunk.eos:
                warnings = list(dict.fromkeys([*notes, *warnings_of(chunk.payload)]))
                usage = _usage(service, [request], [chunk.payload])
                yield {"type": f"{kind}.completed", **told, "usage": usage, "warnings": warnings}
            else:
                yield {"type": f"{kind}.partial_image", **told, "partial_image_index": shown}
                shown += 1


def _file(service: Service, body: ImageRequest, request: OmniRequest, payload: Payload) -> str:
    tensor = payload.tensor(IMAGE)
    image_format: Any = body.output_format or "png"
    encoded = encode(
        np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape),
        image_format,
        metadata=None
        if request.image is None
        else generation(request.image, body.prompt, request.seed, service.plan, drawn_after(payload)),
        quality=max(1, _QUALITY if body.output_compression is None else body.output_compression),
    )
    return b64(encoded.data)
