"""Starts the processes of a plan on this machine. `start` returns when every replica is loaded and warmed up.

It owns nothing after that: what it has started belongs to the `RunningStages` that it returns.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from omni_cli.errors import LaunchError, reason
from omni_cli.launch.mps import MpsDaemon
from omni_cli.launch.rings import Rings, stale_segments
from omni_cli.launch.running import RunningStages
from omni_cli.launch.signals import deferred
from omni_cli.launch.startup import Startup
from omni_cli.plan.devices import device_uuid
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.events import Listener
from stages.config import StageSpec
from stages.worker.bootstrap import RunStage

log = logging.getLogger("omni.launch")


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """Launches one plan once. `specs` has one entry a replica, of one run.

    `listener` hears ProcessStarted, ProcessReady and ProcessDead; `clock` is CLOCK_MONOTONIC in ns; `on_progress` gets
    a line for a person at least every 10 s while stages load. `run_stage` replaces the worker (tests).
    """

    plan: ExecutionPlan
    specs: Sequence[StageSpec]
    _: KW_ONLY
    listener: Listener
    on_progress: Callable[[str], None] = log.info
    clock: Callable[[], int] = time.monotonic_ns
    run_stage: RunStage | None = None

    def start(self) -> RunningStages:
        """Blocks until all are ready. LaunchError as soon as one fails, dies or passes its limit.

        To be called by a thread that lives as long as the run: the kernel ends the stages with it. However this call
        is left, by an error or by a signal, nothing of the run remains.
        """
        try:
            return self._start()
        except OSError as error:
            raise LaunchError(f"the stages cannot be started: {reason(error)}") from error

    def _start(self) -> RunningStages:
        for segment in stale_segments(remove=True):
            log.info("removed %s, left behind by a run that has died", segment)
        rings = Rings(self.specs)
        running = RunningStages(
            rings,
            drain_timeout_s=self.plan.drain_timeout_s,
            listener=self.listener,
            clock=self.clock,
            run_stage=self.run_stage,
        )
        try:
            with deferred():
                rings.create()
                self._start_mps(running)
            self._bring_up(running)
        except BaseException:
            running.stop(drain_timeout_s=0)
            raise
        return running

    def _bring_up(self, running: RunningStages) -> None:
        for spec in self.specs:
            with deferred():
                running.spawn(spec)
        limits_s = {spec.process: self.plan.stage(spec.stage).startup_timeout_s for spec in self.specs}
        Startup(
            running.replicas, limits_s, listener=self.listener, clock=self.clock, on_progress=self.on_progress
        ).wait()

    def _start_mps(self, running: RunningStages) -> None:
        """One daemon for all devices that have one."""
        physical = [self.plan.physical_devices[position] for position in self.plan.mps_devices]
        if any(set(spec.devices) & set(physical) for spec in self.specs):
            running.mps = MpsDaemon({device: device_uuid(device) for device in physical})
