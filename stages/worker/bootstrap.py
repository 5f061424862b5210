"""The first code of a stage process: its name, its signals, its tie to the parent's life; then the worker takes over.

It imports nothing but the standard library and the contracts, so that a stage whose code cannot even be imported still
tells its parent why. It must not know what a stage does.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection

from stages.config import StageSpec
from stages.errors import describe
from stages.messages import ProcessFailed
from stages.worker.channel import Inbox, Outbox

RunStage = Callable[[StageSpec, Inbox, Outbox], None]

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_LIBC = ctypes.CDLL(None, use_errno=True)


def run_stage_process(
    spec: StageSpec, reader: Connection, writer: Connection, parent_pid: int, worker: RunStage | None = None
) -> None:
    """Target of the spawned process. Exits with 1 after an error, which it has sent as `ProcessFailed`.

    `worker` is `stages.worker.main.run_stage` unless another is given.
    """
    _prctl(_PR_SET_NAME, f"omni:{spec.process}".encode())  # what `top` shows; the kernel cuts it to 15 bytes
    die_with(parent_pid)
    _leave_terminal()
    outbox = Outbox(writer)
    try:
        # Imported here, not above: what fails in it is an error of this stage like any other.
        run: RunStage = worker or import_module("stages.worker.main").run_stage
        run(spec, Inbox(reader), outbox)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        # Told to the parent, which prints it once; a traceback on our stderr would be the second.
        outbox.put(ProcessFailed(process=spec.process, t_ns=time.monotonic_ns(), error=describe(error, spec.process)))
        sys.exit(1)


def _prctl(option: int, argument: object) -> None:
    if _LIBC.prctl(option, argument, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}): {os.strerror(errno)}")


def die_with(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """The kernel signals this process when the thread of the parent that has started it ends, whatever ends it. Takes
    no lock, so that it is safe between fork and exec."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:  # the parent died before the kernel knew
        os._exit(1)


def _leave_terminal() -> None:
    """A Ctrl-C, or a signal to the whole process group, is the parent's to handle: it stops us in its own order.

    The parent started us with these signals blocked. Ignoring them drops those that have come in until now.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
