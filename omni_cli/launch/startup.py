"""From spawned to ready: listens to all processes at once until each is loaded and warmed up, or one cannot be."""

from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait

from omni_cli.errors import LaunchError
from omni_cli.launch.process import StageProcess
from omni_cli.runtime.events import Listener
from omni_cli.runtime.stage_log import log_line
from stages.errors import ErrorInfo
from stages.events import ProcessReady, StepReport
from stages.messages import LogLine, ProcessFailed

PROGRESS_S = 5.0  # between two lines that say who is waited for


class Startup:
    """Waits for a set of processes, each against its own limit in seconds (by process) since `started_ns`.

    Messages wait in each process's pipe until they are read, so none is lost, whoever is faster.
    """

    def __init__(
        self,
        processes: Sequence[StageProcess],
        limits_s: Mapping[str, float],
        *,
        listener: Listener,
        clock: Callable[[], int],
        on_progress: Callable[[str], None],
    ) -> None:
        self._processes = {process.process: process for process in processes}
        self._limits_s = limits_s
        self._listener = listener
        self._clock = clock
        self._on_progress = on_progress
        self._pending = dict(self._processes)
        self._started_ns = clock()

    def wait(self) -> None:
        """Returns when all are ready. LaunchError at once when one fails or dies, or when a limit has passed."""
        names = ", ".join(self._pending)
        self._on_progress(f"starting {names}")
        next_line_s = PROGRESS_S
        while self._pending:
            elapsed_s = self._elapsed_s()
            due_s = min(next_line_s, *(self._limits_s[name] for name in self._pending))
            for process in self._readable(max(0.0, due_s - elapsed_s)):
                self._take(process)
            elapsed_s = self._elapsed_s()
            self._check_limits(elapsed_s)
            if self._pending and elapsed_s >= next_line_s:
                self._on_progress(f"waiting for {', '.join(self._pending)}: {elapsed_s:.0f} s")
                next_line_s = elapsed_s + PROGRESS_S

    def _elapsed_s(self) -> float:
        return (self._clock() - self._started_ns) / 1e9

    def _readable(self, timeout_s: float) -> list[StageProcess]:
        """Processes that have something to say or have died. Those that are ready already may die as well."""
        waited = [(process, end) for process in self._processes.values() for end in (process.reader, process.sentinel)]
        ready = wait([end for _, end in waited], timeout_s)
        return list({process.process: process for process, end in waited if end in ready}.values())

    def _take(self, process: StageProcess) -> None:
        try:
            message = process.receive()
        except (EOFError, OSError):
            raise LaunchError(f"{process.process} died while it was starting: {process.ending()}") from None
        if isinstance(message, LogLine):
            log_line(message)
        elif isinstance(message, ProcessFailed):
            raise LaunchError(_failure(process.process, message.error))
        elif isinstance(message, StepReport):
            self._report(process, message)

    def _report(self, process: StageProcess, report: StepReport) -> None:
        for event in report.events:
            self._listener(process.process, event)
            if isinstance(event, ProcessReady) and process.process in self._pending:
                del self._pending[process.process]
                self._on_progress(f"{process.process} is ready after {self._elapsed_s():.1f} s")

    def _check_limits(self, elapsed_s: float) -> None:
        for name, process in self._pending.items():
            if elapsed_s >= self._limits_s[name]:
                raise LaunchError(
                    f"{name} was not ready after {self._limits_s[name]:g} s, the limit of stage {process.stage!r}. "
                    f"If it only needs longer, raise deploy.stages.{process.stage}.startup_timeout_s"
                )


def _failure(name: str, error: ErrorInfo) -> str:
    text = f"{name} failed while it was starting: {error.kind}: {error.message}"
    return f"{text}\n--- stage traceback of {name}\n{error.trace.rstrip()}" if error.trace else text
