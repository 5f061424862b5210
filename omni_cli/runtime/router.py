"""Which stages a request passes and who feeds whom, for any DAG and any set of wanted outputs. Pure data."""

from dataclasses import dataclass
from functools import cache

from omni_cli.plan.model import ExecutionPlan
from stages.messages import REQUEST


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRoute:
    """A stage's share in a request: the producers it waits for, the stages it feeds, the outputs it ends in."""

    inputs: tuple[str, ...]
    consumers: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """All stages of a request in topological order; `entries` are those that no other stage feeds."""

    stages: dict[str, StageRoute]
    entries: tuple[str, ...]


class Router:
    """Routes by the plan's edges: the stages of a request are the ancestors of the stages of its outputs."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self.route = cache(self._route)

    def _route(self, outputs: frozenset[str], has_media: bool) -> Route:
        """KeyError for an output that is not deployed. Cached: few combinations are ever asked for."""
        needed = {self._plan.outputs[modality] for modality in outputs}
        for stage in reversed(self._plan.stages):
            if stage.name in needed:
                needed.update(edge.producer for edge in stage.inputs if edge.producer != REQUEST)
        stages = {}
        for stage in self._plan.stages:
            if stage.name not in needed:
                continue
            producers = tuple(e.producer for e in stage.inputs if has_media or e.producer != REQUEST)
            stages[stage.name] = StageRoute(
                inputs=producers,
                consumers=tuple(e.consumer for e in stage.consumers if e.consumer in needed),
                outputs=tuple(m for m in stage.outputs if m in outputs),
            )
        entries = tuple(name for name, route in stages.items() if set(route.inputs) <= {REQUEST})
        return Route(stages=stages, entries=entries)
