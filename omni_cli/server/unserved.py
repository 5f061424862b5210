"""Routes of OpenAI's API that exist for every recipe and that none serves yet: a plain 4xx that names the recipe."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, StrictStr
from starlette.responses import Response

from omni_cli.server.errors import ApiError
from omni_cli.server.openapi import OF_A_BODY, ErrorBody
from omni_cli.server.service import Service
from omni_cli.server.system import TheService, check_model

router = APIRouter()

_FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/images/variations")
_OBJECTS = ("/v1/images/generations", "/v1/embeddings", "/v1/responses", "/tokenize", "/detokenize")


class AnyRequest(BaseModel):
    """Only the model's name matters: it is checked on every route."""

    model_config = ConfigDict(frozen=True, extra="allow")

    model: StrictStr | None = None


def _refusal(service: Service, path: str) -> ApiError:
    outputs = ", ".join(service.plan.outputs)
    message = f"{path} is not supported by recipe {service.plan.recipe}, which gives {outputs}"
    return ApiError(400, message, "not_supported")


def _add(path: str, *, form: bool) -> None:
    async def unserved_form(service: TheService) -> Response:
        raise _refusal(service, path)

    async def unserved_object(body: AnyRequest, service: TheService) -> Response:
        check_model(service, body.model)
        raise _refusal(service, path)

    route: Any = unserved_form if form else unserved_object
    router.add_api_route(
        path, route, methods=["POST"], summary="Not served by any recipe yet",
        status_code=400, response_model=ErrorBody, responses=OF_A_BODY,
    )  # fmt: skip


for _path in _FORMS:
    _add(_path, form=True)
for _path in _OBJECTS:
    _add(_path, form=False)
