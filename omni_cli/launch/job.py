"""`omni` itself as a child process: a job of a sweep, which starts stages of its own and ends them.

It must not know what the job does.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from stages.worker.bootstrap import die_with


class Job:
    """`omni WORDS`, with stdout and stderr in the file `log`. Implements `Killable`.

    It has a process group of its own, so that a Ctrl-C reaches it once, from here, and it is asked to end when this
    process dies. To be started by a thread that lives as long as the job: the kernel's signal is bound to it.
    """

    def __init__(self, words: Sequence[str], log: Path) -> None:
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "omni_cli", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=partial(die_with, os.getpid(), signal.SIGTERM),
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
