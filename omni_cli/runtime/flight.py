"""What the orchestrator keeps of a request beside its state in the lifecycle tables. Plain data."""

from dataclasses import dataclass

from omni_cli.runtime.request import OmniRequest
from omni_cli.runtime.router import Route


@dataclass(slots=True)
class Flight:
    """A request in flight: what was asked for, its way, and when its time is up (ns, None for never)."""

    request: OmniRequest
    route: Route
    deadline_ns: int | None = None
