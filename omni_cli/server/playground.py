"""GET /: one page that uses the API as any client does, and the timeline of a request that it draws. It loads nothing
else, from here or from anywhere.
"""

import base64
import hashlib
import re
import time
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from omni_cli.server.errors import ApiError
from omni_cli.server.openapi import declared
from omni_cli.server.system import TheService

router = APIRouter()

_PAGE = files("omni_cli.server").joinpath("static/index.html").read_text(encoding="utf-8")


def _source(tag: str) -> str:
    """Names the page's only element of that kind by its content, so that none that is slipped in would run."""
    found = re.search(rf"<{tag}>(.*?)</{tag}>", _PAGE, re.DOTALL)
    content = found[1] if found is not None else ""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_source('script')}; style-src {_source('style')}; connect-src 'self'; "
        "img-src data:; media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@router.get("/", response_class=HTMLResponse)
@router.head("/", include_in_schema=False)
async def playground() -> HTMLResponse:
    """The playground."""
    return HTMLResponse(_PAGE, headers=HEADERS)


@router.get("/v1/requests/{request_id}/timeline", responses=declared(404))
async def timeline(request_id: str, service: TheService) -> dict[str, Any]:
    """When each stage of a request waited and worked so far. The id is a call's, `-` and the number of the choice."""
    found = service.timelines.of(request_id)
    if found is None:
        raise ApiError(404, f"there is no request {request_id!r}, or it is too long ago", "request_not_found")
    return found.view(time.monotonic_ns())
