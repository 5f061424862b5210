"""`GET /debug/requests`: what each request in flight waits for, in the words of `omni trace why`. Off unless asked for.

It reads the live lifecycle tables and the ledger, between two turns of the loop; it must not change anything.
"""

import time
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter

from omni_cli.server.errors import ApiError
from omni_cli.server.openapi import declared
from omni_cli.server.system import TheService
from omni_cli.trace.frame import run_started
from omni_cli.trace.why import Moment

router = APIRouter()


@router.get("/debug/requests", responses=declared(404))
async def requests(service: TheService) -> dict[str, Any]:
    """`waiting` are the calls for which no place is free (serve.max_concurrency): they are in no stage."""
    if not service.loaded.config.serve.debug_requests:
        raise ApiError(404, "this route is off; serve.debug_requests=true turns it on", "not_found")
    lifecycle, ledger = service.engine.state
    now_ns = time.monotonic_ns()
    moment = Moment(
        run=run_started(service.plan, "", datetime.fromtimestamp(0, UTC)),
        lifecycle=lifecycle,
        ledger=ledger,
        heard=service.heard,
        now_ns=now_ns,
    )
    found = [
        {
            "id": record.admitted.request_id,
            "status": str(record.state),
            "age_ms": round((now_ns - record.admitted.t_ns) / 1e6, 3),
            "stages": {stage.process: str(stage.state) for stage in record.stages.values()},
            "why": moment.why(record),
        }
        for record in lifecycle.requests.values()
    ]
    return {"waiting": service.admission.waiting, "requests": found}
