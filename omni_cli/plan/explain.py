"""The value of every key and where it comes from: a file and line, the command line, the schema, or the planner."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from omni_cli.config.keys import item_type
from omni_cli.config.load import LoadedConfig
from omni_cli.plan.model import EdgePlan, ExecutionPlan
from omni_cli.plan.tuning import KEYS
from stages.messages import REQUEST

PLANNER = "planner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A dotted key, its value in effect, and its origin."""

    key: str
    value: Any
    origin: str


def explain(loaded: LoadedConfig, plan: ExecutionPlan) -> tuple[Explained, ...]:
    """Every key that can hold a value. What the configuration leaves open has the planner's choice."""
    chosen = dict(_planned(plan))
    found = []
    for key in loaded.keys.valid():
        value = _value(loaded, key)
        origin = loaded.origins.where(key)
        if key in chosen and value in (None, "auto"):
            value, origin = chosen[key], PLANNER
        found.append(Explained(key=key, value=value, origin=origin))
    return tuple(found)


def _value(loaded: LoadedConfig, key: str) -> Any:
    root, *rest = key.split(".")
    if root == loaded.options_node and loaded.options is not None:
        node, kind = loaded.options, loaded.keys.roots[root]
    else:
        node, kind = getattr(loaded.config, root), loaded.keys.roots[root]
    for part in rest:
        if isinstance(node, Mapping):
            item = item_type(kind)
            # A stage or edge that is not mentioned has the defaults of the schema, if its type has defaults for all.
            node = node.get(part) if part in node else _defaults(item)
            kind = item
        else:
            kind = type(node).model_fields[part].annotation if isinstance(node, BaseModel) else None
            node = getattr(node, part, None)
        if node is None:
            return None
    return node.model_dump(mode="json") if isinstance(node, BaseModel) else node


def _defaults(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if any(field.is_required() for field in kind.model_fields.values()):
            return None
        return kind()
    return None


def _planned(plan: ExecutionPlan) -> Iterator[tuple[str, Any]]:
    yield "deploy.outputs", list(plan.outputs)
    yield "deploy.mps", "on" if plan.mps_devices else "off"
    if plan.model.path:
        yield "model.path", plan.model.path
    yield "model.dtype", plan.model.dtype
    for stage in plan.stages:
        key = f"deploy.stages.{stage.name}"
        yield f"{key}.devices", [list(replica.devices) for replica in stage.replicas]
        yield f"{key}.replicas", len(stage.replicas)
        yield f"{key}.max_batch", stage.max_batch
        yield f"{key}.retry", stage.retry
        for name in KEYS:
            if (value := getattr(stage.tuning, name)) is False or value:
                yield f"{key}.{name}", value
        if stage.memory_fraction:
            yield f"{key}.memory_fraction", stage.memory_fraction
        for edge in (*stage.inputs, *(edge for edge in stage.consumers if edge.consumer == REQUEST)):
            yield from _edge(edge)


def _edge(edge: EdgePlan) -> Iterator[tuple[str, Any]]:
    yield f"{edge.key}.connector", edge.connector
    if edge.connector != "inline":
        yield f"{edge.key}.slots", edge.slots
        if edge.ring_bytes:
            yield f"{edge.key}.ring_bytes", edge.ring_bytes
