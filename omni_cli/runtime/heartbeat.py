"""Finds the processes that hang: those that give no sign of life, and those that do and get nothing done.

It must not decide what comes of a death: it only brings it about.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from omni_cli.plan.spec import beat_s
from omni_cli.runtime.processes import StageHandle
from stages.messages import Beat

log = logging.getLogger("omni.runtime")


@dataclass(slots=True)
class _Life:
    """`silent_s` since its last beat, `stuck_s` since its loop has got something done."""

    handle: StageHandle
    beat: Beat | None = None
    silent_s: float = 0.0
    stuck_s: float = 0.0
    condemned: bool = False


class HeartbeatWatch:
    """Condemns what hangs within `limit_s` (`deploy.heartbeat_s`), and not before three quarters of it.

    Time in which this process did not run either counts for nothing: who was stopped with us is no suspect.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._every_s = beat_s(limit_s)
        self._clock = clock
        self._looked_s = clock()
        self._lives: dict[str, _Life] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self, handles: Callable[[], Iterable[StageHandle]]) -> None:
        """Looks at whoever `handles` gives, again and again, in the running loop."""
        self.look(handles())
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self.start, handles)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self, handles: Iterable[StageHandle]) -> None:
        """Takes in what they have said since the last look."""
        now_s = self._clock()
        passed_s, self._looked_s = min(now_s - self._looked_s, 2 * self._every_s), now_s
        for handle in handles:
            life = self._lives.get(handle.process)
            if life is None or life.handle is not handle:
                life = self._lives[handle.process] = _Life(handle)
            elif not life.condemned:
                _listen(life, passed_s)
                self._judge(life)

    def _judge(self, life: _Life) -> None:
        limit = f"for {max(life.silent_s, life.stuck_s):.3g} s, of at most {self._limit_s:g} (deploy.heartbeat_s)"
        due_s = self._limit_s - 2 * self._every_s  # the next look, and a beat that it misses, would be too late
        if life.silent_s >= due_s:
            if life.handle.stopped:
                why = f"it hangs: its process is stopped (SIGSTOP) and has given no sign of life {limit}"
            else:
                why = f"it hangs: no sign of life {limit}; it gets no processor, or some code keeps the interpreter"
        elif life.stuck_s >= due_s:
            why = f"it hangs: it runs, but has not come back from a step {limit}; if one may take that long, raise it"
        else:
            return
        life.condemned = True
        log.error("%s is killed: %s", life.handle.process, why)
        life.handle.condemn(why)


def _listen(life: _Life, passed_s: float) -> None:
    beat, last = life.handle.beat, life.beat
    if beat is last:
        life.silent_s += passed_s
        return
    silence_s, life.silent_s, life.beat = life.silent_s, 0.0, beat
    going_on = beat is None or not beat.working or last is None or not last.working or last.rounds != beat.rounds
    life.stuck_s = 0.0 if going_on else life.stuck_s + silence_s + passed_s
