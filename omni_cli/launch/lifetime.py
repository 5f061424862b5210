"""The stages of a run from their start to their end, and with them the first and the last event of its trace."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from omni_cli.launch.launcher import LocalLauncher
from omni_cli.launch.running import RunningStages
from omni_cli.launch.signals import Interrupts
from omni_cli.runtime.events import CONTROL, Listener, RunFinished, RunStarted


@contextmanager
def lifetime(
    launcher: LocalLauncher,
    interrupts: Interrupts,
    *,
    listener: Listener,
    started: RunStarted,
    events: Callable[[], int],
) -> Iterator[RunningStages]:
    """The launcher's stages, ready; stopped on leaving. `listener` hears `started` before anything else, and the end of
    the run last, also of a start that failed. `events` counts what the trace holds by then."""
    listener(CONTROL, started)
    running: RunningStages | None = None
    try:
        running = launcher.start()
        interrupts.register(running)
        try:
            yield running
        finally:
            running.stop()  # raises a signal that comes meanwhile, after all is done
    finally:
        live_slots = running.live_slots if running is not None else 0
        listener(CONTROL, RunFinished(t_ns=time.monotonic_ns(), live_slots=live_slots, events=events()))
