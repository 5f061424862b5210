"""How kernels are launched: each while the one before it ends (programmatic dependent launch), where a GPU can.

Every kernel waits, before it reads what others write, for all that was launched before it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from triton import knobs


@cache
def _waits(device: int) -> bool:
    """Whether this GPU has the instruction for it, as Hopper has and what came later."""
    return bool(torch.cuda.get_device_capability(device) >= (9, 0))


def programs(kernel: Any, *grid: int) -> Callable[..., None]:
    """A launch of `kernel` over `grid`, to be called with its arguments."""
    launch: Callable[..., None] = kernel[grid]
    overlap = not knobs.runtime.interpret and _waits(torch.cuda.current_device())

    def run(*arguments: Any, **options: Any) -> None:
        if overlap:
            launch(*arguments, PDL=True, launch_pdl=True, **options)
        else:
            launch(*arguments, PDL=False, **options)

    return run
