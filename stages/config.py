"""What crosses spawn: everything a stage process needs to know, built by the planner. Plain frozen data."""

from dataclasses import dataclass
from typing import Literal

ExecutionType = Literal["llm_ar", "llm_generation", "diffusion"]
EdgeMode = Literal["complete", "incremental"]
Connector = Literal["inline", "shm", "cuda_ipc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSpec:
    """One preallocated ring: `segment` is its name under /dev/shm; one producing process writes it.

    `key` is the configuration key that makes it larger, for the message of a payload that can never fit.
    """

    segment: str
    slots: int
    data_bytes: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSpec:
    """An edge as one process sees it. As a producer it has one ring; as a consumer one ring a producing replica.

    `connector` is the short name in the connectors' registry; `rings` is empty for `inline`.
    """

    producer: str
    consumer: str
    mode: EdgeMode
    connector: str
    rings: tuple[RingSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """`path` is the checkpoint folder, empty for a family without weights. `load_format` is `auto` or `dummy`."""

    path: str
    load_format: str
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTuning:
    """How a stage does its work: deploy keys that change its speed, never its result, but for
    `step_cache`. None: no meaning to the stage."""

    step_tokens: int | None = None
    kv_block_tokens: int | None = None
    kv_blocks: int | None = None  # 0: as many as the memory holds
    first_chunk_frames: int | None = None
    chunk_frames: int | None = None
    decode: Literal["exact", "transformers"] | None = None
    graphs: bool | None = None
    compile: Literal["none", "blocks"] | None = None
    step_cache: Literal["none", "first_block"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One replica of one stage. `devices` are physical ids for CUDA_VISIBLE_DEVICES; empty means CPU."""

    run_id: str
    family: str
    stage: str
    replica: int
    generation: int
    execution_type: ExecutionType
    model: ModelSpec
    devices: tuple[str, ...]
    max_batch: int
    memory_fraction: float
    threads: int
    inputs: tuple[EdgeSpec, ...]
    consumers: tuple[EdgeSpec, ...]
    outputs: tuple[str, ...]
    tuning: StageTuning = StageTuning()
    beat_s: float | None = None  # between two signs of life; None: none
    options: object = None  # the family's own options (contract.options), e.g. init delays of `synthetic`

    @property
    def process(self) -> str:
        return f"{self.stage}.{self.replica}"
