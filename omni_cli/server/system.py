"""What is not about a request: health, models, version. Answers at once, however busy the stages are."""

import time
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from omni_cli.server.errors import ApiError
from omni_cli.server.metrics import CONTENT_TYPE
from omni_cli.server.service import Service

router = APIRouter()
_STARTED_S = int(time.time())


def the_service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


TheService = Annotated[Service, Depends(the_service)]


def check_model(service: Service, model: str | None) -> None:
    """ApiError 404 for a model that is not served; no name at all is the one that is."""
    if model is not None and model != service.name:
        raise ApiError(
            404, f"the model {model!r} does not exist; this server has {service.name!r}", "model_not_found", "model"
        )


@router.get("/health/live")
@router.head("/health/live", include_in_schema=False)
async def live() -> dict[str, str]:
    """The process runs and answers."""
    return {"status": "alive"}


@router.get("/health")
@router.get("/health/ready")
@router.head("/health", include_in_schema=False)
@router.head("/health/ready", include_in_schema=False)
async def ready(service: TheService) -> JSONResponse:
    """200 while requests are taken and every process lives, else 503; a body per stage either way."""
    dead = service.engine.dead
    stages = {
        stage.name: {
            f"{stage.name}.{replica.index}": dead.get(f"{stage.name}.{replica.index}", "ready")
            for replica in stage.replicas
        }
        for stage in service.plan.stages
    }
    status = "draining" if service.admission.draining else "unhealthy" if dead else "ready"
    body: dict[str, Any] = {
        "status": status,
        "stages": stages,
        "running": service.admission.running,
        "waiting": service.admission.waiting,
    }
    return JSONResponse(body, status_code=200 if status == "ready" else 503)


@router.get("/version")
async def versions(service: TheService) -> dict[str, str]:
    return {"version": _version(), "recipe": service.plan.recipe, "plan": service.plan.digest}


def _version() -> str:
    try:
        return version("omni-stages")
    except PackageNotFoundError:
        return "a checkout that is not installed"


def _model(service: Service) -> dict[str, Any]:
    return {"id": service.name, "object": "model", "created": _STARTED_S, "owned_by": "omni"}


@router.get("/metrics")
@router.head("/metrics", include_in_schema=False)
async def metrics(service: TheService) -> Response:
    """What the listeners have heard, in Prometheus' text format."""
    text = service.metrics.text(running=service.admission.running, waiting=service.admission.waiting)
    return Response(text, media_type=CONTENT_TYPE)


@router.get("/v1/models")
@router.head("/v1/models", include_in_schema=False)
async def models(service: TheService) -> dict[str, Any]:
    return {"object": "list", "data": [_model(service)]}


@router.get("/v1/models/{model:path}")
async def model(model: str, service: TheService) -> dict[str, Any]:
    check_model(service, model)
    return _model(service)
