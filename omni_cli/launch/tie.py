"""Ties a child that is no stage to the life of this process: the kernel signals it when we die, whatever ends us."""

import ctypes
import os
from collections.abc import Callable
from signal import Signals

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def dying_with_parent(number: Signals) -> Callable[[], None]:
    """For `preexec_fn`: takes no lock, so that it is safe between fork and exec. The kernel binds it to the thread that
    starts the child, which has to live as long."""
    parent, libc = os.getpid(), ctypes.CDLL(None)

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel knew
            os._exit(1)

    return tie
