"""The plan that a run was carried by, as its folder keeps it beside the trace."""

import json
from pathlib import Path

from pydantic import ValidationError

from omni_cli.errors import TraceError
from omni_cli.plan.model import ExecutionPlan


def recorded_plan(trace: Path, digest: str | None) -> ExecutionPlan:
    """The plan.json beside the trace, which says that it has this digest (None: whichever it has). TraceError."""
    path = trace.with_name("plan.json")
    try:
        document = json.loads(path.read_bytes())
        recorded = document.pop("digest")
        plan = ExecutionPlan.model_validate(document)
    except OSError as error:
        raise TraceError(f"{path}: the run's plan is needed beside its trace: {error.strerror}") from error
    except (ValueError, KeyError, AttributeError) as error:
        what = "it has other keys than this omni's" if isinstance(error, ValidationError) else "it is not whole"
        raise TraceError(f"{path}: is not a plan that can be read: {what}") from error
    if digest is not None and recorded != digest:
        raise TraceError(f"{path}: is another plan ({recorded:.12}) than that of {trace.name} ({digest:.12})")
    return plan
