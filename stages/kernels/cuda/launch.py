"""How kernels are launched: one after the other, or each while the one before it ends (programmatic dependent launch).

Every kernel that is launched overlapping waits, before it reads what others write, for all that was launched before it.
"""

from collections.abc import Callable
from typing import Any

from triton import knobs

# Small programs, or ones that load weights before they wait. The others lose by it: their programs would crowd on the
# few multiprocessors that are already free.
OVERLAPPING = {
    "_matvec",
    "_gate_up_row",
    "_down_row",
    "_decode",
    "_join",
    "_route",
    "_rope",
    "_norm",
    "_add_norm",
    "_combine",
    "_plan",
    "_count",
    "_draw",
}


def programs(kernel: Any, *grid: int) -> Callable[..., None]:
    """A launch of `kernel` over `grid`, to be called with its arguments."""
    launch: Callable[..., None] = kernel[grid]
    overlap = not knobs.runtime.interpret and kernel.__name__ in OVERLAPPING

    def run(*arguments: Any, **options: Any) -> None:
        if overlap:
            launch(*arguments, PDL=True, launch_pdl=True, **options)
        else:
            launch(*arguments, PDL=False, **options)

    return run
