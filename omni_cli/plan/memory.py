"""What each stage will hold by its family's formulas, against the share of device memory that it is given.

An estimate: what a stage has measured is in its process-ready event.
"""

from collections.abc import Iterator

from omni_cli.config.report import Problem
from omni_cli.plan.devices import Inventory
from omni_cli.plan.model import ExecutionPlan, KVPlan, StagePlan
from omni_cli.plan.placement import Placement
from stages.config import StageTuning
from stages.models.registry import CPU_KV_BYTES, KV_HEADROOM_BYTES, FamilyContract, StageMemory, step_bytes


def kv_plan(
    memory: StageMemory, placement: Placement, tuning: StageTuning, max_batch: int, inventory: Inventory
) -> KVPlan | None:
    """The KV cache of a replica, as large as the batch can use or the memory holds. None for a stage without one."""
    block_tokens = tuning.kv_block_tokens
    if block_tokens is None or not (memory.kv_token_bytes or tuning.kv_blocks):
        return None
    blocks = tuning.kv_blocks or 0
    room = _room(memory, placement, inventory)
    if not blocks and room is not None:
        wanted = max_batch * -(-memory.context_tokens // block_tokens)
        blocks = min(wanted, max(0, room) // (block_tokens * memory.kv_token_bytes))
    return KVPlan(block_tokens=block_tokens, blocks=blocks, token_bytes=memory.kv_token_bytes)


def _room(memory: StageMemory, placement: Placement, inventory: Inventory) -> int | None:
    """Bytes for a KV cache; None where the size of a device is not known."""
    if not any(placement.replicas):
        return CPU_KV_BYTES
    smallest = min(inventory.devices[device].memory_bytes for replica in placement.replicas for device in replica)
    if not smallest:
        return None
    return int(smallest * placement.memory_fraction) - memory.weight_bytes - KV_HEADROOM_BYTES


def memory_problems(plan: ExecutionPlan, family: FamilyContract, inventory: Inventory) -> Iterator[Problem]:
    """Stages that cannot hold their weights, or not the KV blocks as well, in what they are given of a device."""
    for stage in plan.stages:
        memory = family.memory(plan.model.path, stage.name, plan.model.dtype)
        held: dict[int, int] = {}
        for replica in stage.replicas:
            for index, device in enumerate(replica.devices):
                held[device] = max(held.get(device, 0), memory.weights_of(index))
        for device, weight_bytes in sorted(held.items()):
            size = inventory.devices[device].memory_bytes
            if size and weight_bytes:
                yield from _too_small(stage, device, size, weight_bytes)


def _too_small(stage: StagePlan, device: int, size: int, weight_bytes: int) -> Iterator[Problem]:
    given = int(size * stage.memory_fraction)
    asked = stage.tuning.kv_blocks or 1
    own = step_bytes(stage.execution_type, stage.tuning)
    needs = [f"its weights take {_gib(weight_bytes)}", f"a step's own work {_gib(own)}"]
    need = weight_bytes + own
    key = "memory_fraction"
    if stage.kv is not None and stage.kv.token_bytes:
        kv_bytes = asked * stage.kv.block_tokens * stage.kv.token_bytes
        needs.append(f"{asked} KV blocks {_gib(kv_bytes)}")
        key = key if need >= given or asked == 1 else "kv_blocks"
        need += kv_bytes
    if need > given:
        message = (
            f"{stage.memory_fraction:g} of device {device} is {_gib(given)}, but `{stage.name}` does not fit: "
            f"{', '.join(needs)}"
        )
        yield Problem(key=f"deploy.stages.{stage.name}.{key}", message=message)


def _gib(count: int) -> str:
    return f"{count / 2**30:.3g} GiB"
