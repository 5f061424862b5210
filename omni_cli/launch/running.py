"""The processes and rings of one run: what the runtime uses of them, and the ladder by which they end.

Whatever way a run ends, `stop` is the one place that ends it: no process and no segment is left after it.
"""

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import cast

from omni_cli.errors import RunEnding
from omni_cli.launch.environment import stage_environment
from omni_cli.launch.mps import MpsDaemon
from omni_cli.launch.process import StageProcess
from omni_cli.launch.rings import Rings
from omni_cli.launch.signals import deferred
from omni_cli.runtime.events import CONTROL, Listener, ProcessDead, ProcessStarted
from omni_cli.runtime.processes import MediaPort, OutputPort
from omni_cli.runtime.stage_log import log_line
from stages.config import RingSpec, StageSpec
from stages.messages import LogLine, Stop, Turn
from stages.worker.bootstrap import RunStage

log = logging.getLogger("omni.launch")

TERMINATE_S = 2.0  # between SIGTERM and SIGKILL
KILL_S = 5.0  # for the kernel to end a killed process


class RunningStages:
    """All replicas of a plan. Implements `Processes`; as a context manager it stops them on leaving."""

    def __init__(
        self,
        rings: Rings,
        *,
        drain_timeout_s: float,
        listener: Listener,
        clock: Callable[[], int] = time.monotonic_ns,
        run_stage: RunStage | None = None,
    ) -> None:
        self._rings = rings
        self._run_stage = run_stage
        self.replicas: tuple[StageProcess, ...] = ()
        self.media_ports: Mapping[str, MediaPort] = rings.media_ports
        self.output_ports: Mapping[str, OutputPort] = rings.output_ports
        self.mps: MpsDaemon | None = None  # ends after the processes
        self._drain_timeout_s = drain_timeout_s
        self._listener = listener
        self._clock = clock
        self._hurry = False
        self._live_slots: int | None = None
        atexit.register(self.stop, 0)  # whoever forgets to stop, or is interrupted on the way there

    def spawn(self, spec: StageSpec) -> StageProcess:
        """Starts a replica and returns at once; from here on it is ended by `stop`, ready or not."""
        environment, notes = stage_environment(spec, os.environ)
        if self.mps is not None:
            environment |= self.mps.client(spec.devices)
        for note in notes:
            log.info("%s: %s", spec.process, note)
        t_ns = self._clock()  # before, or a stage could be ready earlier than it was started
        process = StageProcess.spawn(spec, environment, self._run_stage)
        self.replicas = (*self.replicas, process)
        self._listener(
            CONTROL, ProcessStarted(t_ns=t_ns, process=spec.process, generation=spec.generation, pid=process.pid)
        )
        return process

    def renew(self, process: str, generation: int) -> None:
        self._refuse_late()
        self._rings.renew(process, generation)

    def start_again(self, process: str, generation: int) -> StageProcess:
        self._refuse_late()
        with deferred():
            for dead in (p for p in self.replicas if p.process == process):
                dead.close()
            started = self.spawn(self._rings.spec(process, generation))
            self.replicas = tuple(p for p in self.replicas if p.process != process or p is started)
        return started

    def _refuse_late(self) -> None:
        if self._hurry or self._live_slots is not None:
            raise RunEnding("the run is ending")

    def retire(self, process: str, generation: int) -> Mapping[str, RingSpec]:
        return self._rings.retire(process, generation)

    def __enter__(self) -> "RunningStages":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def kill(self) -> None:
        """Ends every process at once; `stop` then finds little to do. For a signal handler: takes no lock, waits for
        nothing."""
        self._hurry = True
        for process in self.replicas:
            process.kill()

    def abandon(self) -> None:
        """Kills, and removes the rings' names without looking into them: the last thing a hanging parent can do."""
        self.kill()
        if self.mps is not None:
            self.mps.kill()
        self._rings.unlink()

    @property
    def live_slots(self) -> int:
        """How many slots of the rings were still held when the run was stopped; 0 before."""
        return self._live_slots or 0

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """Tells all to stop, waits, terminates, kills, removes the rings and counts the slots that were still held.

        Takes at most `drain_timeout_s` (the plan's, unless given; 0 kills at once), `TERMINATE_S` and `KILL_S`. A
        signal that comes meanwhile kills at once, and is delivered when all is clean. A second call does nothing.
        """
        with deferred(self.kill):
            if self._live_slots is None:
                self._live_slots = 0
                try:
                    self._descend(self._drain_timeout_s if drain_timeout_s is None else drain_timeout_s)
                finally:
                    if self.mps is not None:
                        self.mps.stop()
                    self._live_slots = self._rings.remove()
                    atexit.unregister(self.stop)

    def _descend(self, grace_s: float) -> None:
        """The ladder: say it, terminate, kill. Each rung is bounded; an empty one is not waited for.

        Who was given up does not hear of the first rung.
        """
        running = [process for process in self.replicas if not process.join(0)]
        told = frozenset(process.process for process in running if process.failure is None)
        if grace_s > 0 and not self._hurry:
            for process in running:
                _start_thread(_drain, process)
                if process.given_up:
                    process.terminate()
                else:
                    _start_thread(_say_stop, process)
            asked = [process for process in running if not process.given_up]
            for process in self._running_after(grace_s, asked):
                log.warning("%s did not stop within %g s and is terminated", process.process, grace_s)
                process.terminate()
            running = self._running_after(TERMINATE_S, running)
        for process in running:
            process.kill()
        for process in self._running_after(KILL_S, running):
            log.error("%s (pid %d) is still there %g s after SIGKILL", process.process, process.pid, KILL_S)
        for process in self.replicas:
            name, cause = process.process, process.ending()
            if not process.told:
                dead = ProcessDead(t_ns=self._clock(), process=name, expected=name in told, cause=cause)
                self._listener(CONTROL, dead)
            process.close()

    def _running_after(self, timeout_s: float, processes: Sequence[StageProcess]) -> list[StageProcess]:
        """Waits until all have ended, at most `timeout_s`; returns those that have not."""
        running = {process.sentinel: process for process in processes}
        due_ns = self._clock() + int(timeout_s * 1e9)
        while running:
            left_s = (due_ns - self._clock()) / 1e9
            for sentinel in wait(list(running), max(0.0, left_s)):
                del running[cast("int", sentinel)]
            if left_s <= 0:
                break
        return list(running.values())


def _start_thread(work: Callable[[StageProcess], None], process: StageProcess) -> None:
    """Both works end with the process, at the latest. Daemon threads: nothing waits for them."""
    threading.Thread(target=work, args=(process,), name=f"stop {process.process}", daemon=True).start()


def _say_stop(process: StageProcess) -> None:
    """In a thread of its own, since the pipe to a process that no longer reads may be full."""
    with contextlib.suppress(OSError):
        process.send(Turn(commands=(Stop(),), sent_ns=time.monotonic_ns()))


def _drain(process: StageProcess) -> None:
    """Reads what a stopping process still says, or its full pipe would keep it from ending."""
    while True:
        try:
            message = process.receive()
        except (EOFError, OSError):
            return
        if isinstance(message, LogLine):
            log_line(message)
