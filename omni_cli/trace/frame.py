"""The first line of a trace, which says of what run and plan it is; and how times in a trace are read, and a request's
place in its caller's trace."""

import re
import time
from datetime import datetime

from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.events import Event, RunStarted
from omni_cli.trace.codec import SCHEMA
from stages.events import StepDone

TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
"""Version, trace, span, flags: https://www.w3.org/TR/trace-context/#traceparent-header"""


def happened_ns(event: Event) -> int:
    """On the run's clock. A step happens when it is done: then its results exist."""
    return event.end_ns if isinstance(event, StepDone) else event.t_ns


def wall_ns(wall_time: str) -> int:
    """Since 1970. Raises ValueError or OverflowError for what is no time of ISO 8601."""
    return int(datetime.fromisoformat(wall_time).timestamp() * 1e6) * 1000


def run_started(plan: ExecutionPlan, run_id: str, started_at: datetime) -> RunStarted:
    """The event, stamped now; `started_at` is the run's wall time."""
    return RunStarted(
        t_ns=time.monotonic_ns(),
        schema=SCHEMA,
        run_id=run_id,
        recipe=plan.recipe,
        plan_digest=plan.digest,
        stages=tuple(stage.name for stage in plan.stages),
        edges=tuple((e.producer, e.consumer, e.mode) for stage in plan.stages for e in stage.inputs),
        outputs=tuple(plan.outputs.items()),
        lookahead=tuple(
            (e.producer, e.consumer, e.lookahead_units)
            for stage in plan.stages
            for e in stage.inputs
            if e.lookahead_units
        ),
        wall_time=started_at.isoformat(),
    )
