"""The books of a run: every event is told and entered here once, every word to a worker and every slot given back.

It must not decide anything about a request.
"""

from collections.abc import Callable

from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime import events
from omni_cli.runtime.leases import LeaseLedger
from omni_cli.runtime.lifecycle import Lifecycle
from omni_cli.runtime.media_gate import MediaGate, is_media
from omni_cli.runtime.replicas import Replicas
from stages.lease import Lease
from stages.messages import Command, Reclaim, Turn


class Books:
    """`clock` gives CLOCK_MONOTONIC in ns."""

    def __init__(
        self, plan: ExecutionPlan, *, clock: Callable[[], int], listener: events.Listener, media: MediaGate
    ) -> None:
        self.clock = clock
        self.lifecycle = Lifecycle()
        self.ledger = LeaseLedger()
        self.replicas = Replicas(plan, clock, self.ledger)
        self._listener = listener
        self._media = media
        self._turns: dict[str, list[Command]] = {}

    def enter(self, event: events.Event, source: str = events.CONTROL) -> None:
        """Told first, so that the trace holds what the tables then refuse. Raises IllegalTransition."""
        self._listener(source, event)
        self.lifecycle.apply(source, event)
        self.ledger.apply(source, event)

    def say(self, process: str, command: Command) -> None:
        """To a dead process nothing is said."""
        if self.replicas.lives(process):
            self._turns.setdefault(process, []).append(command)

    def take_turns(self) -> dict[str, Turn]:
        """What each worker has to be told since the last call, in order."""
        turns, self._turns = self._turns, {}
        now = self.clock()
        return {process: Turn(commands=tuple(commands), sent_ns=now) for process, commands in turns.items()}

    def forget_words(self, process: str) -> None:
        """It died before it was told."""
        self._turns.pop(process, None)

    def drop(self, uid: int, lease: Lease) -> None:
        """Ends a lease that nobody will read under any more."""
        self.enter(events.LeaseDropped(t_ns=self.clock(), uid=uid, lease=lease))
        self.reclaim(lease)

    def reclaim(self, lease: Lease) -> None:
        """The slot goes back to its owner, if that life of it still lasts."""
        if is_media(lease):
            self._media.reclaim(lease)
        elif self.replicas.owns(lease):
            self.say(lease.owner, Reclaim(leases=(lease,)))
        else:
            self.replicas.retire_unread()
