"""Routes of OpenAI's API that exist for every recipe and that none serves yet: a plain 4xx that names the recipe."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, StrictStr
from starlette.responses import Response

from omni_cli.server.openapi import OF_A_BODY, ErrorBody
from omni_cli.server.system import TheService, check_model, not_supported

router = APIRouter()

_FORMS = (
    *("/v1/audio/transcriptions", "/v1/audio/translations"),
    *("/v1/images/variations", "/v1/videos"),
)
_OBJECTS = ("/v1/embeddings", "/v1/responses", "/detokenize")


class AnyRequest(BaseModel):
    """Only the model's name matters: it is checked on every route."""

    model_config = ConfigDict(frozen=True, extra="allow")

    model: StrictStr | None = None


def _add(path: str, *, form: bool) -> None:
    async def unserved_form(service: TheService) -> Response:
        raise not_supported(service, path)

    async def unserved_object(body: AnyRequest, service: TheService) -> Response:
        check_model(service, body.model)
        raise not_supported(service, path)

    route: Any = unserved_form if form else unserved_object
    router.add_api_route(
        path, route, methods=["POST"], summary="Not served by any recipe yet",
        status_code=400, response_model=ErrorBody, responses=OF_A_BODY,
    )  # fmt: skip


for _path in _FORMS:
    _add(_path, form=True)
for _path in _OBJECTS:
    _add(_path, form=False)
