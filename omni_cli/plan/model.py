"""The execution plan: what configuration, family contract and device inventory have been merged into. Frozen data.

Everything below the planner reads the plan and nothing else. Building it is `build`'s business, checking `graph`'s and
`placement`'s.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from stages.config import Connector, EdgeMode, ExecutionType, StageTuning
from stages.messages import REQUEST
from stages.models.registry import ImageContract


class PlanModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelPlan(PlanModel):
    """Which weights: `path` is an absolute folder, empty for a family without weights."""

    path: str
    load_format: Literal["auto", "dummy"]
    dtype: str


class EdgePlan(PlanModel):
    """One edge: how `consumer` is fed by `producer` and what carries the payloads.

    `slots` and `ring_bytes` are those of the ring of each producing replica; both 0 for `inline`. The edge from
    `request` carries decoded media into a first stage, the edge to `request` final outputs out of a last one.
    `reason` says why that connector. `lookahead_units` is the input contract's, 0 on a complete edge.
    """

    producer: str
    consumer: str
    mode: EdgeMode
    connector: Connector
    reason: str = ""
    slots: int
    ring_bytes: int
    key: str
    lookahead_units: int = 0


class ReplicaPlan(PlanModel):
    """One process: `devices` are positions in the visible device list; empty is the CPU."""

    index: int
    devices: tuple[int, ...]


class KVPlan(PlanModel):
    """The KV cache of a replica. `blocks` is an estimate unless it was asked for; 0 is not known before the start."""

    block_tokens: int
    blocks: int
    token_bytes: int

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_tokens


class StagePlan(PlanModel):
    """One stage: its replicas, its capacity, how it works, its edges in both directions.

    `weight_bytes` is by formula, 0 where there is none.
    """

    name: str
    execution_type: ExecutionType
    replicas: tuple[ReplicaPlan, ...]
    max_batch: int
    max_queue: int | None = None
    memory_fraction: float
    startup_timeout_s: float
    restarts: int = 0
    restart_window_s: float = 0.0
    retry: int = 0
    threads: int
    tuning: StageTuning = StageTuning()
    weight_bytes: int = 0
    kv: KVPlan | None = None
    inputs: tuple[EdgePlan, ...]
    consumers: tuple[EdgePlan, ...]
    outputs: tuple[str, ...]

    @property
    def limit(self) -> int | None:
        """Requests that a replica may have at once; None: any number."""
        return None if self.max_queue is None else self.max_batch + self.max_queue

    @property
    def unrepeatable(self) -> str:
        """Why its input cannot be given to another replica once more; empty if it can."""
        inputs = [edge for edge in self.inputs if edge.producer != REQUEST]
        pieces = [edge.producer for edge in inputs if edge.mode == "incremental"]
        if pieces:  # kept, they would hold the ring places that are their producer's only credit
            return f"its input from {' and '.join(pieces)} came piece by piece and is gone"
        ringed = [edge.producer for edge in inputs if edge.connector != "inline"]
        if len(ringed) > 1:
            return f"its inputs from {' and '.join(ringed)} have gone back to their rings"
        return ""


class ExecutionPlan(PlanModel):
    """The whole deployment. `stages` are in topological order; `outputs` maps each deployed final output to its stage.

    `physical_devices` maps a position in the visible list to the id that a child's CUDA_VISIBLE_DEVICES gets; those
    at the positions `mps_devices` get an MPS daemon.
    `image` says which pictures it draws (None: none).
    `options` are the deployment's defaults of the family's own options dataclass (None where it has none).
    """

    recipe: str
    pipeline: str
    family: str
    model: ModelPlan
    stages: tuple[StagePlan, ...]
    outputs: Mapping[str, str]
    media: tuple[str, ...]
    voices: tuple[str, ...]
    physical_devices: tuple[str, ...]
    mps_devices: tuple[int, ...] = ()
    heartbeat_s: float | None = None
    drain_timeout_s: float
    image: ImageContract | None = None
    options: Any = None

    def stage(self, name: str) -> StagePlan:
        return next(stage for stage in self.stages if stage.name == name)

    def document(self) -> dict[str, Any]:
        """The plan as JSON, with its digest first: what `omni plan --json` prints and a run keeps."""
        return {"digest": self.digest, **self.model_dump(mode="json")}

    @property
    def entries(self) -> tuple[StagePlan, ...]:
        """The stages that no other stage feeds."""
        return tuple(s for s in self.stages if all(edge.producer == REQUEST for edge in s.inputs))

    @cached_property
    def digest(self) -> str:
        """sha256 over the plan's canonical JSON: two runs with one digest were carried in the same way."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
