"""What is not about a request: health, models, version. Answers at once, however busy the stages are."""

import re
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from omni_cli.server.errors import ApiError
from omni_cli.server.metrics import CONTENT_TYPE
from omni_cli.server.openapi import declared
from omni_cli.server.service import Service
from omni_cli.trace.frame import TRACEPARENT

router = APIRouter()

# A later version than 00 may say more behind what is known.
_GIVEN = re.compile(rf"(?P<known>{TRACEPARENT.pattern})|(?!00)(?P<later>{TRACEPARENT.pattern})-.*")
_UNWELL: dict[int | str, dict[str, Any]] = {
    503: {"description": "Not well", "content": {"application/json": {"schema": {"type": "object"}}}}
}
_STARTED_S = int(time.time())


async def the_service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


TheService = Annotated[Service, Depends(the_service)]


def check_model(service: Service, model: str | None) -> None:
    """ApiError 404 for a model that is not served; no name at all is the one that is."""
    if model is not None and model != service.name:
        raise ApiError(
            404, f"the model {model!r} does not exist; this server has {service.name!r}", "model_not_found", "model"
        )


def not_supported(service: Service, path: str) -> ApiError:
    plan = service.plan
    message = f"{path} is not supported by recipe {plan.recipe}, which gives {', '.join(plan.outputs)}"
    return ApiError(400, message, "not_supported")


def require_output(service: Service, output: str, path: str) -> None:
    """ApiError 400 on a route that needs an output which is not deployed."""
    if output not in service.plan.outputs:
        raise not_supported(service, path)


async def the_traceparent(request: Request) -> str | None:
    """The caller's place in a trace of its own. One that is none is ignored, as the standard wants it: it never fails a
    request. https://www.w3.org/TR/trace-context/#traceparent-header"""
    given = request.headers.getlist("traceparent")
    found = _GIVEN.fullmatch(given[0].strip()) if len(given) == 1 else None
    return None if found is None else found["known"] or found["later"]


TheTraceparent = Annotated[str | None, Depends(the_traceparent)]


@router.get("/health/live", responses=_UNWELL)
@router.head("/health/live", include_in_schema=False)
async def live(service: TheService) -> JSONResponse:
    """200 as long as going on makes sense, starting and draining included; 503 if only a new process can help."""
    broken = service.engine.failure is not None
    return JSONResponse({"status": "broken" if broken else "alive"}, status_code=503 if broken else 200)


@router.get("/health", responses=_UNWELL)
@router.get("/health/ready", responses=_UNWELL)
@router.head("/health", include_in_schema=False)
@router.head("/health/ready", include_in_schema=False)
async def ready(service: TheService) -> JSONResponse:
    """200 while requests are taken and a replica of every stage is ready, else 503; a body per replica either way, and
    the reason where one is not."""
    failure, replicas = service.engine.failure, service.engine.replicas
    stages: dict[str, dict[str, Any]] = {}
    for replica in replicas:
        stages.setdefault(replica.stage.name, {})[replica.process] = {
            "state": replica.word,
            "generation": replica.generation,
            "restarts": replica.restarts,
            "cause": replica.cause or None,
        }
    lacking = [replica for replica in replicas if not replica.serving]
    served = {replica.stage.name for replica in replicas if replica.serving}
    status, reason = "ready", None
    if failure is not None:
        status, reason = "broken", f"the orchestrator failed ({type(failure).__name__}); the server's log has why"
    elif service.admission.draining:
        status, reason = "draining", "the server is shutting down"
    elif lacking:
        status = "unhealthy" if stages.keys() - served else "degraded"
        reason = "; ".join(f"{replica.process} is {replica.word}: {replica.cause}" for replica in lacking)
    body: dict[str, Any] = {
        "status": status,
        "reason": reason,
        "stages": stages,
        "running": service.admission.running,
        "waiting": service.admission.waiting,
    }
    return JSONResponse(body, status_code=200 if status in ("ready", "degraded") else 503)


@router.get("/version")
async def versions(service: TheService) -> dict[str, Any]:
    """What runs here: also the outputs that can be asked for, and the kinds of media that are read."""
    plan = service.plan
    what = {"outputs": list(plan.outputs), "media": list(plan.media)}
    return {"version": _version(), "recipe": plan.recipe, "plan": plan.digest, **what}


def _version() -> str:
    try:
        return version("omni-stages")
    except PackageNotFoundError:
        return "a checkout that is not installed"


def _model(service: Service) -> dict[str, Any]:
    return {"id": service.name, "object": "model", "created": _STARTED_S, "owned_by": "omni"}


@router.get("/metrics", response_class=PlainTextResponse)
@router.head("/metrics", include_in_schema=False)
async def metrics(service: TheService) -> Response:
    """What the listeners have heard, in Prometheus' text format."""
    text = service.metrics.text(running=service.admission.running, waiting=service.admission.waiting)
    return Response(text, media_type=CONTENT_TYPE)


@router.get("/v1/models")
@router.head("/v1/models", include_in_schema=False)
async def models(service: TheService) -> dict[str, Any]:
    return {"object": "list", "data": [_model(service)]}


@router.get("/v1/models/{model:path}", responses=declared(404))
async def model(model: str, service: TheService) -> dict[str, Any]:
    check_model(service, model)
    return _model(service)
