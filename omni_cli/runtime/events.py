"""What the control plane itself decides or sees, beside the events of the stages (`stages.events`).

Both kinds go, stamped once, to every listener: the trace, the progress display, metrics.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from stages.errors import ErrorInfo
from stages.events import StageEvent
from stages.lease import Lease

Outcome = Literal["finished", "empty", "failed", "cancelled"]

CONTROL = "omni"  # the source of the control plane's own events; stage events have the process's name as source


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """First event of a trace. `edges` are (producer, consumer, mode) triples; `outputs` (modality, stage) pairs.

    `lookahead` has (producer, consumer, units) for the incremental edges on which a row has to know more than its own
    unit: InputContract.lookahead_units.
    """

    t_ns: int
    schema: int
    run_id: str
    recipe: str
    plan_digest: str
    stages: tuple[str, ...]
    edges: tuple[tuple[str, str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    wall_time: str
    lookahead: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """Last event of a trace: everything is stopped. `live_slots` were counted in the ring headers, not the ledger.

    `events` is the number of trace events before this one.
    """

    t_ns: int
    live_slots: int
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted:
    t_ns: int
    process: str
    generation: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNotStarted:
    """A dead process was to be started again, and this life of it could not begin. `final`: the run is ending, and no
    process is started any more."""

    t_ns: int
    process: str
    generation: int
    cause: str
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessDead:
    """The process has ended. `expected` after a stop; otherwise `cause` says how it died (signal, exit code, error)."""

    t_ns: int
    process: str
    expected: bool
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAdmitted:
    """A request is taken on. `outputs` are the modalities it asked for, `stages` all stages it will pass.

    `media`: it brings decoded media. `traceparent` places it in a trace of the caller's own (W3C Trace Context), if
    that was given.
    """

    t_ns: int
    uid: int
    request_id: str
    seed: int
    outputs: tuple[str, ...]
    stages: tuple[str, ...]
    timeout_s: float | None
    media: bool = False
    traceparent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSubmitted:
    """A replica was chosen and told. `waits_for` names the producers whose streams the request needs there."""

    t_ns: int
    uid: int
    stage: str
    process: str
    waits_for: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGranted:
    """The reader of a slot is fixed: the message (`producer` -> stage of `reader`, `seq`) is on its way to it.

    `kept`: the slot outlives the reading, as it may have to be read once more.
    """

    t_ns: int
    uid: int
    lease: Lease
    producer: str
    reader: str
    seq: int
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPut:
    """The parent has put a request's decoded media into a first stage's input ring, as message 0 with eos."""

    t_ns: int
    uid: int
    consumer: str
    lease: Lease | None
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseDropped:
    """A slot is taken back: its reader died, nobody was left to read it, or it was kept and is not needed any more."""

    t_ns: int
    uid: int
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRead:
    """The control plane has read a final output in its slot and released it."""

    t_ns: int
    uid: int
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCancelling:
    """`Cancel` was sent to the replica; it is answered by StageCancelled or by the death of the process."""

    t_ns: int
    uid: int
    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFinished:
    """A final output of a request has ended. `units` and `chunks` count what was produced of it."""

    t_ns: int
    uid: int
    modality: str
    outcome: Outcome
    units: int
    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFinished:
    """Every output that the request asked for has finished (or is empty)."""

    t_ns: int
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    t_ns: int
    uid: int
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCancelled:
    t_ns: int
    uid: int
    reason: str


ControlEvent = (
    RunStarted
    | RunFinished
    | ProcessStarted
    | ProcessNotStarted
    | ProcessDead
    | RequestAdmitted
    | StageSubmitted
    | LeaseGranted
    | MediaPut
    | LeaseDropped
    | LeaseRead
    | StageCancelling
    | OutputFinished
    | RequestFinished
    | RequestFailed
    | RequestCancelled
)

Event = ControlEvent | StageEvent


class Listener(Protocol):
    """Hears every event once, in the order in which the control plane took it in.

    Called in the event loop's thread (or the launcher's, before and after): must return at once. What it raises is
    logged once, and it is not called again; it can never break a run.
    """

    def __call__(self, source: str, event: Event) -> None: ...
