"""The devices of a stage process, with its share of threads and memory. Of a model it knows the contract."""

import torch

from stages.config import StageSpec
from stages.errors import StageError
from stages.models.registry import contract, step_bytes


def open_device(spec: StageSpec) -> torch.device:
    """The process's first visible GPU if the plan gives it one, else the CPU. On a GPU float32 stays float32.

    Raises StageError if a device has less left than the stage's weights and a step take.
    """
    torch.set_num_threads(spec.threads)
    if not spec.devices:
        return torch.device("cpu")
    for index in range(len(spec.devices)):
        torch.cuda.set_per_process_memory_fraction(spec.memory_fraction, index)
        check_memory(spec, index, *torch.cuda.mem_get_info(index))
    torch.backends.cudnn.allow_tf32 = False  # TF32 is on by default in convolutions
    return torch.device("cuda", 0)


def check_memory(spec: StageSpec, index: int, free: int, total: int) -> None:
    """StageError if the device has less left than the stage takes, whoever has the rest. Sizes in bytes."""
    held = contract(spec.family).memory(spec.model.path, spec.stage, spec.model.dtype)
    need = held.weights_of(index) + step_bytes(spec.execution_type, spec.tuning)
    if need > free:
        raise StageError(
            f"stage {spec.stage} needs {need / 2**30:.1f} GiB for its weights and a step, but device "
            f"{spec.devices[index]} has {free / 2**30:.1f} of {total / 2**30:.1f} GiB free: end what else runs "
            f"on it, or choose another with deploy.stages.{spec.stage}.devices"
        )
