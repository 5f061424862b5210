"""POST /v1/images/edits: pictures that start from a given one, or given ones edited, sent as a form with files; else as
generations."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from omni_cli.server.errors import bad_request
from omni_cli.server.images import IMAGE, answer
from omni_cli.server.openapi import OF_A_CALL
from omni_cli.server.protocol import ImageEditRequest
from omni_cli.server.system import TheService, TheTraceparent, check_model, not_supported, require_output

router = APIRouter()

_PICTURES = ("image", "image[]")  # the client's name for one, and for several
_MOST_FILES, _MOST_FIELDS = 16, 64
_FILE = {"type": "string", "format": "binary"}
_FIELDS = ImageEditRequest.model_json_schema()
_SCHEMA = {**_FIELDS, "properties": {IMAGE: _FILE, **_FIELDS["properties"]}, "required": [IMAGE, "prompt"]}
_NO_TEXTS = {"n", "output_compression", "stream", "partial_images", "seed", "steps", "true_cfg_scale", "guidance_scale",
             "sigmas", "timeout_s", "strength"}  # fmt: skip
_FORM = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _SCHEMA}}}}


@router.post("/v1/images/edits", response_class=JSONResponse, responses=OF_A_CALL, openapi_extra=_FORM)
async def edits(request: Request, service: TheService, traceparent: TheTraceparent) -> Response:
    """As OpenAI's by a model that edits; else by `strength`, how much of the picture is drawn anew."""
    require_output(service, IMAGE, request.url.path)
    if IMAGE not in service.plan.media:
        raise not_supported(service, request.url.path)
    body, pictures = await _read(request)
    check_model(service, body.model)
    if not pictures:
        raise bad_request("image: a file is needed, in a body of multipart/form-data", param=IMAGE)
    return await answer(request, service, body, traceparent, pictures)


async def _read(request: Request) -> tuple[ImageEditRequest, tuple[bytes, ...]]:
    """The fields by their schema, and the files. RequestValidationError or ApiError says what is wrong."""
    fields: dict[str, str] = {}
    pictures = []
    async with request.form(max_files=_MOST_FILES, max_fields=_MOST_FIELDS) as form:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile) != (name in _PICTURES):
                kind = "no file" if isinstance(value, UploadFile) else "a file"
                raise bad_request(f"{name}: is {kind} here", param=name.removesuffix("[]"))
            if isinstance(value, UploadFile):
                pictures.append(await value.read())
            elif name in fields:
                raise bad_request(f"{name}: is given twice", param=name)
            else:
                fields[name] = value
    try:
        return ImageEditRequest.model_validate(_typed(fields)), tuple(pictures)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


def _typed(fields: Mapping[str, str]) -> dict[str, Any]:
    """Form fields are texts; those that are no texts in JSON are read as JSON. What cannot be read stays a text, which
    the schema then refuses by its name."""
    found: dict[str, Any] = dict(fields)
    for name in _NO_TEXTS & fields.keys():
        with suppress(ValueError, RecursionError):
            found[name] = json.loads(fields[name])
    return found
