"""What one replica's process is told: the plan, cut down to what concerns it, with physical devices and ring names."""

from omni_cli.plan.model import EdgePlan, ExecutionPlan
from stages.config import EdgeSpec, ModelSpec, RingSpec, StageSpec
from stages.messages import REQUEST

_PAGE_BYTES = 4096
_PADDING_BYTES = 1 << 16  # room for the alignment of each medium inside its payload


def stage_specs(plan: ExecutionPlan, run_id: str, *, media_bytes: int = 0) -> tuple[StageSpec, ...]:
    """The specs of all replicas in their first life, in topological order. Arguments as in `stage_spec`."""
    return tuple(
        stage_spec(plan, stage.name, replica.index, run_id, media_bytes=media_bytes)
        for stage in plan.stages
        for replica in stage.replicas
    )


def stage_spec(plan: ExecutionPlan, stage: str, replica: int, run_id: str, *, media_bytes: int = 0) -> StageSpec:
    """The spec of one replica. `media_bytes` is how much decoded media the ring into a first stage shall hold where the
    configuration does not say; 0 means that no request has media, and the edge is left out."""
    planned = plan.stage(stage)
    numbers = _ring_numbers(plan)
    inputs = [edge for edge in planned.inputs if edge.producer != REQUEST or media_bytes]

    def rings(edge: EdgePlan, replicas: tuple[int, ...]) -> tuple[RingSpec, ...]:
        if edge.connector == "inline":
            return ()
        size = edge.ring_bytes or -(-(media_bytes + _PADDING_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
        return tuple(
            RingSpec(
                segment=f"omni-{run_id}-{numbers[edge.producer, edge.consumer, index]}",
                slots=edge.slots,
                data_bytes=size,
                key=f"{edge.key}.ring_bytes",
            )
            for index in replicas
        )

    return StageSpec(
        run_id=run_id,
        family=plan.family,
        stage=stage,
        replica=replica,
        generation=0,
        execution_type=planned.execution_type,
        model=ModelSpec(path=plan.model.path, load_format=plan.model.load_format, dtype=plan.model.dtype),
        devices=tuple(plan.physical_devices[position] for position in planned.replicas[replica].devices),
        max_batch=planned.max_batch,
        memory_fraction=planned.memory_fraction,
        threads=planned.threads,
        inputs=tuple(_edge(edge, rings(edge, _writers(plan, edge))) for edge in inputs),
        consumers=tuple(_edge(edge, rings(edge, (replica,))) for edge in planned.consumers),
        outputs=planned.outputs,
        tuning=planned.tuning,
        beat_s=None if plan.heartbeat_s is None else beat_s(plan.heartbeat_s),
        options=plan.options,
    )


def beat_s(heartbeat_s: float) -> float:
    """Between two signs of life: some that are late are no silence."""
    return min(1.0, heartbeat_s / 8)


def _edge(edge: EdgePlan, rings: tuple[RingSpec, ...]) -> EdgeSpec:
    return EdgeSpec(
        producer=edge.producer, consumer=edge.consumer, mode=edge.mode, connector=edge.connector, rings=rings
    )


def _writers(plan: ExecutionPlan, edge: EdgePlan) -> tuple[int, ...]:
    """The replicas that write an edge; the parent is one."""
    if edge.producer == REQUEST:
        return (0,)
    return tuple(replica.index for replica in plan.stage(edge.producer).replicas)


def _ring_numbers(plan: ExecutionPlan) -> dict[tuple[str, str, int], int]:
    """A number for every (producer, consumer, writing replica), the same in every process of a run: of edges that are
    written into a stage by the parent, and of those that the stage writes."""
    written = [
        edge
        for stage in plan.stages
        for edge in (*stage.inputs, *stage.consumers)
        if edge.producer in (REQUEST, stage.name)
    ]
    keys = ((edge.producer, edge.consumer, index) for edge in written for index in _writers(plan, edge))
    return {key: number for number, key in enumerate(keys)}
