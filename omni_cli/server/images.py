"""POST /v1/images/generations: exists for every recipe, checks what it is sent, and refuses for one without images."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from omni_cli.server.openapi import OF_A_BODY, ErrorBody
from omni_cli.server.protocol import ImageRequest
from omni_cli.server.system import TheService, check_model, not_supported

router = APIRouter()


@router.post("/v1/images/generations", status_code=400, response_model=ErrorBody, responses=OF_A_BODY)
async def generations(body: ImageRequest, request: Request, service: TheService) -> Response:
    """Served by no recipe yet."""
    check_model(service, body.model)
    raise not_supported(service, request.url.path)
