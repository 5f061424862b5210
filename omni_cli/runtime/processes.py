"""What the runtime needs of whoever runs the stage processes. `omni_cli.launch` implements it; tests have their own."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from stages.config import RingSpec
from stages.events import StepReport
from stages.lease import Lease
from stages.messages import Beat, LogLine, ProcessFailed, Turn
from stages.payload import Payload, PayloadRef


class StageHandle(Protocol):
    """One live replica. `send` and `receive` block: each is called by one thread of its own, never by the loop."""

    @property
    def stage(self) -> str: ...

    @property
    def process(self) -> str:
        """The replica's name, `talker.0`."""
        ...

    @property
    def generation(self) -> int:
        """Which life of the replica it is, from 0."""
        ...

    @property
    def written(self) -> Mapping[str, RingSpec]:
        """By consumer, the rings that it writes; `request` is the way out of final media."""
        ...

    def send(self, turn: Turn) -> None:
        """Raises OSError if the process is gone."""
        ...

    def receive(self) -> StepReport | LogLine | Beat | ProcessFailed:
        """Raises EOFError or OSError when the process has died, within milliseconds of its death."""
        ...

    def reap(self) -> None:
        """After the end of `receive`: waits a little for the process to be gone, so that `death` can say how."""
        ...

    def death(self) -> str:
        """After the end of `receive`: how the process died, for a person (`killed by SIGKILL`, `exit code 3`)."""
        ...

    @property
    def beat(self) -> Beat | None:
        """The last that was received."""
        ...

    @property
    def stopped(self) -> bool:
        """The kernel runs none of its threads (SIGSTOP)."""
        ...

    def condemn(self, why: str) -> None:
        """Kills it; `death` then says why. Takes no lock and does not wait."""
        ...

    def give_up(self) -> None:
        """It no longer answers: at the stop it is not asked first, and not waited for."""
        ...


class MediaPort(Protocol):
    """The control plane's end of the ring that carries decoded media into a first stage."""

    def put(self, pieces: Sequence[Payload]) -> tuple[PayloadRef, Lease | None] | None: ...

    def reclaim(self, lease: Lease) -> None: ...


class OutputPort(Protocol):
    """The control plane's end of the ring that carries final outputs of one replica out."""

    def get(self, ref: PayloadRef) -> Payload: ...


class Processes(Protocol):
    """All replicas of a plan, started and ready; and the means to start one again that has died.

    A next life is made in two steps: `renew` may take a while, in any thread; `start_again` is a matter of
    milliseconds, in the thread that started the run.
    """

    @property
    def replicas(self) -> Sequence[StageHandle]: ...

    def renew(self, process: str, generation: int) -> None:
        """Reserves the memory that the next life writes. Raises LaunchError if there is none, RunEnding."""
        ...

    def start_again(self, process: str, generation: int) -> StageHandle:
        """Spawns the next life; it says itself when it is ready. Raises RunEnding or OSError."""
        ...

    def retire(self, process: str, generation: int) -> Mapping[str, RingSpec]:
        """Gives back what a dead life has written, once nobody can still read it; by consumer."""
        ...

    @property
    def media_ports(self) -> Mapping[str, MediaPort]:
        """By first stage, where the plan has an edge from `request`."""
        ...

    @property
    def output_ports(self) -> Mapping[str, OutputPort]:
        """By process, for the replicas of stages with final media outputs."""
        ...
