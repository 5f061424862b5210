"""The processes of a run: which of them live, in which life, who takes a request, and when a dead one is started again.

It decides; `Supervisor` carries its orders out. It has no threads and no clock of its own, and knows no request but as
a number.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from omni_cli.plan.model import ExecutionPlan, StagePlan
from omni_cli.runtime.leases import LeaseLedger
from omni_cli.runtime.lifecycle import PROCESS, Process, advance
from omni_cli.runtime.stage_pool import NoReplica, StagePool
from stages.lease import Lease

log = logging.getLogger("omni.runtime")

FIRST_PAUSE_S = 1.0  # before the second restart in a window; each further one waits twice as long
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start this life of a dead replica; answered by `started`, or by `not_started`, of the same generation."""

    process: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemn:
    """Kill the replica; answered by its death."""

    process: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Nobody reads any more what this life of a dead replica has written."""

    process: str
    generation: int


Order = Start | Condemn | Retire


@dataclass(slots=True)
class Replica:
    """One replica. `generation` counts its lives from 0, `restarts` those that became ready again.

    `cause` says how it died last. `hopeless`: it is not started again. `due_ns`: when the next step falls due that the
    control plane has to take itself, the next start of a dead one, the end of one that does not become ready.
    """

    process: str
    stage: StagePlan
    state: Process = Process.READY
    generation: int = 0
    restarts: int = 0
    cause: str = ""
    hopeless: bool = False
    due_ns: int | None = None
    attempts_ns: list[int] = field(default_factory=list)  # of the restarts within the window

    @property
    def serving(self) -> bool:
        return self.state is Process.READY

    @property
    def word(self) -> str:
        """`ready`, `starting`, `restarting` (dead, to be started again) or `dead`."""
        if self.state is Process.DEAD:
            return "dead" if self.hopeless else "restarting"
        return "ready" if self.serving else "starting"


class Replicas:
    """All replicas of a plan, each ready when the run begins. `clock` gives CLOCK_MONOTONIC in ns.

    `pools` has, by stage, its ready replicas with their requests, and who waits for one.
    """

    def __init__(self, plan: ExecutionPlan, clock: Callable[[], int], ledger: LeaseLedger) -> None:
        self._clock = clock
        self._ledger = ledger
        self._replicas = {
            process: Replica(process, stage)
            for stage in plan.stages
            for process in (f"{stage.name}.{replica.index}" for replica in stage.replicas)
        }
        self.pools = {
            stage.name: StagePool(stage.name, tuple(f"{stage.name}.{r.index}" for r in stage.replicas), stage.limit)
            for stage in plan.stages
        }
        self._due: set[str] = set()
        self._unread: set[tuple[str, int]] = set()  # lives that are over, with slots that somebody still reads
        self._orders: list[Order] = []
        self._ending = False

    def all(self) -> tuple[Replica, ...]:
        return tuple(self._replicas.values())

    # requests

    def serves(self, stage: str) -> bool:
        """Whether a ready replica of the stage has room. False: one will have it. NoReplica if none will."""
        if self.pools[stage].alive:
            return self.pools[stage].has_room
        of_stage = [replica for replica in self._replicas.values() if replica.stage.name == stage]
        if all(replica.hopeless for replica in of_stage):
            causes = "; ".join(f"{replica.process}: {replica.cause}" for replica in of_stage)
            raise NoReplica(f"stage {stage} has no live process ({causes})")
        return False

    # what is said, and heard

    def lives(self, process: str) -> bool:
        """Whether it can be told something."""
        return self._replicas[process].state is not Process.DEAD

    def speaks(self, process: str, generation: int) -> bool:
        """Whether what came from this life of a replica counts. A life that is over has nothing to say any more."""
        replica = self._replicas[process]
        return replica.state is not Process.DEAD and replica.generation == generation

    def owns(self, lease: Lease) -> bool:
        """Whether the slot can go back to who wrote it; a later life of it must never hear of it."""
        return self.speaks(lease.owner, lease.generation)

    # lives

    def died(self, process: str, cause: str, t_ns: int) -> None:
        """It is started again if its stage allows that, at once or after a while; `serves` knows whether. `t_ns` is
        the time that its death is recorded with, from which that while counts."""
        replica = self._replicas[process]
        self._move(replica, "dead")
        self.pools[replica.stage.name].lose(process)
        self._unread.add((process, replica.generation))
        self.retire_unread()
        self._schedule(replica, cause, t_ns)

    def started(self, process: str, generation: int) -> None:
        """The life that was ordered has a process; it has `startup_timeout_s` to become ready."""
        replica = self._replicas[process]
        self._move(replica, "started")
        replica.generation = generation
        self._set_due(replica, self._clock() + round(replica.stage.startup_timeout_s * 1e9))

    def not_started(self, process: str, generation: int, cause: str, t_ns: int, *, final: bool) -> None:
        """The life that was ordered could not begin, at `t_ns`; `final`: no process is started any more."""
        replica = self._replicas[process]
        self._move(replica, "not started")
        replica.generation = generation
        (log.info if final else log.error)("%s could not be started again: %s", process, cause)
        self._ending = self._ending or final
        self._orders.append(Retire(process=process, generation=generation))
        for dead in self._replicas.values() if final else (replica,):
            if dead.state is Process.DEAD:
                self._schedule(dead, cause if dead is replica else dead.cause, t_ns)

    def ready(self, process: str) -> None:
        """The last life that was started has become ready; what else says so has been so since the run began."""
        replica = self._replicas[process]
        if replica.state is not Process.STARTED:
            return
        self._move(replica, "ready")
        replica.restarts += 1
        self._set_due(replica, None)
        self.pools[replica.stage.name].join(process)
        log.warning("%s is ready again, as generation %d", process, replica.generation)

    def retire_unread(self) -> None:
        """To be called when a lease has ended whose owner is dead."""
        for process, generation in tuple(self._unread):
            if not self._ledger.holds(process, generation):
                self._unread.remove((process, generation))
                self._orders.append(Retire(process=process, generation=generation))

    def next_due_ns(self) -> int | None:
        """When `take_orders` has something that it has not now."""
        return min((due for process in self._due if (due := self._replicas[process].due_ns) is not None), default=None)

    def take_orders(self) -> list[Order]:
        """What is to be done with processes now."""
        if self._due:
            now = self._clock()
            for process in sorted(self._due):
                self._fall_due(self._replicas[process], now)
        orders, self._orders = self._orders, []
        return orders

    def _fall_due(self, replica: Replica, now: int) -> None:
        if replica.due_ns is None or replica.due_ns > now:
            return
        self._set_due(replica, None)
        if replica.state is Process.DEAD:
            self._orders.append(Start(process=replica.process, generation=replica.generation + 1))
        else:
            why = f"not ready {replica.stage.startup_timeout_s:g} s after its start"
            self._orders.append(Condemn(process=replica.process, why=why))

    def _schedule(self, replica: Replica, cause: str, now: int) -> None:
        stage = replica.stage
        replica.cause = cause
        window_ns = round(stage.restart_window_s * 1e9)
        replica.attempts_ns = [at for at in replica.attempts_ns if now - at < window_ns]
        count = len(replica.attempts_ns)
        if count >= stage.restarts or self._ending:
            replica.hopeless = True
            self._set_due(replica, None)
            if stage.restarts and not self._ending:
                log.error("%s is not started again: %d restarts in %g s are its limit (deploy.stages.%s.restarts)",
                          replica.process, stage.restarts, stage.restart_window_s, stage.name)  # fmt: skip
            return
        pause_s = min(FIRST_PAUSE_S * 2 ** (count - 1), LONGEST_PAUSE_S) if count else 0.0
        replica.attempts_ns.append(now)
        self._set_due(replica, now + round(pause_s * 1e9))
        later = f" in {pause_s:g} s" if pause_s else ""
        log.warning("%s is started again%s: restart %d of %d in %g s", replica.process, later, count + 1,
                    stage.restarts, stage.restart_window_s)  # fmt: skip

    def _set_due(self, replica: Replica, due_ns: int | None) -> None:
        replica.due_ns = due_ns
        (self._due.discard if due_ns is None else self._due.add)(replica.process)

    def _move(self, replica: Replica, event: str) -> None:
        replica.state = advance(PROCESS, replica.state, event, None, "process {}", replica.process)
