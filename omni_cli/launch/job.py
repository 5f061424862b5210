"""`omni` itself as a child process: a job of a sweep, which starts stages of its own and ends them.

It must not know what the job does.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Job:
    """`omni WORDS`, with stdout and stderr in the file `log`. Implements `Killable`.

    It has a process group of its own, so that a Ctrl-C reaches it once, from here, and it is asked to end when this
    process dies. To be started by a thread that lives as long as the job: the kernel's signal is bound to it.
    """

    def __init__(self, words: Sequence[str], log: Path) -> None:
        parent, libc = os.getpid(), ctypes.CDLL(None)

        def die_with_parent() -> None:
            """In the child, between fork and exec."""
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:  # it died before the kernel knew
                os._exit(1)

        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "omni_cli", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=die_with_parent,  # takes no lock: safe between fork and exec
            )

    def wait(self) -> int:
        """The exit code; however this call is left, the job has ended."""
        try:
            return self._process.wait()
        finally:
            if self._process.poll() is None:
                self._process.terminate()
                self._process.wait()

    def kill(self) -> None:
        """Asks it once more to end, which it takes for an order: it kills its stages and goes."""
        self._process.terminate()

    def abandon(self) -> None:
        self._process.kill()
