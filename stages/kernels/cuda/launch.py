"""How kernels are launched: each while the one before it ends (programmatic dependent launch).

Every kernel waits, before it reads what others write, for all that was launched before it.
"""

from collections.abc import Callable
from typing import Any

from triton import knobs


def programs(kernel: Any, *grid: int) -> Callable[..., None]:
    """A launch of `kernel` over `grid`, to be called with its arguments."""
    launch: Callable[..., None] = kernel[grid]
    overlap = not knobs.runtime.interpret

    def run(*arguments: Any, **options: Any) -> None:
        if overlap:
            launch(*arguments, PDL=True, launch_pdl=True, **options)
        else:
            launch(*arguments, PDL=False, **options)

    return run
