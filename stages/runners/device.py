"""The device of a stage process, with its share of threads and memory. Knows no model."""

import torch

from stages.config import StageSpec


def open_device(spec: StageSpec) -> torch.device:
    """The process's first visible GPU if the plan gives it one, else the CPU. On a GPU float32 stays float32."""
    torch.set_num_threads(spec.threads)
    if not spec.devices:
        return torch.device("cpu")
    device = torch.device("cuda", 0)
    for index in range(len(spec.devices)):
        torch.cuda.set_per_process_memory_fraction(spec.memory_fraction, index)
    torch.backends.cudnn.allow_tf32 = False  # TF32 is on by default in convolutions
    return device
