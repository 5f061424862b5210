"""What happens inside a stage process, each stamped once where it happens (CLOCK_MONOTONIC, ns, one clock for all).

A `StepReport` carries the events of one step in the order in which they happened. The lifecycle table, the lease
ledger and the trace read the same events.
"""

from dataclasses import dataclass
from typing import Literal

from stages.errors import ErrorInfo
from stages.lease import Lease
from stages.messages import StreamMessage
from stages.payload import PayloadRef

FinishReason = Literal["stop", "length", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputReady:
    """The request's input streams satisfy the stage's input contract: it may run.

    `prompt_tokens` will be computed before its first own unit.
    """

    uid: int
    t_ns: int
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """The request is part of a step of this stage for the first time."""

    uid: int
    t_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One request's share of a step: it was at `position` and advanced by `units` of the stage's own units.

    Of `llm_ar`: `tokens` of its sequence (the prompt, then what it has generated) were computed, from index `start`.
    """

    uid: int
    phase: Literal["prefill", "decode", "forward", "encode", "denoise"]
    position: int
    units: int
    start: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One call of the runner, from `t_ns` to `end_ns`, over all rows. `index` counts the process's steps from 0.

    `kv_blocks` KV blocks were in use during the step; before it, and since the step before, the requests in
    `preempted` had lost theirs. `counters` are (name, count) pairs of the runner that say which path it took.
    """

    index: int
    t_ns: int
    end_ns: int
    rows: tuple[StepRow, ...]
    kv_blocks: int = 0
    preempted: tuple[int, ...] = ()
    counters: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePut:
    """A stream message was put. If it has a lease, the lease is granted by this event."""

    uid: int
    t_ns: int
    message: StreamMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageGot:
    """The stage's input processor has read message `seq` of the stream from `producer`."""

    uid: int
    t_ns: int
    producer: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReleased:
    """The reader is done with a slot, or gives it up because the request was cancelled."""

    uid: int
    t_ns: int
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputProduced:
    """A piece of a final output: `text`, or for media a payload, inline up to 64 KiB, else in the stage's output ring.

    Audio: tensor `audio` with scalar `sample_rate_hz`. Image: tensor `image`, uint8 [height, width, 3]. A modality is
    its type, with `_` and a label where a pipeline has several (`audio_mix`); the tensor is named after the type.
    `units` counts the stage's own units in it. `eos` ends the output; `reason` says why, on the last piece only.
    """

    uid: int
    t_ns: int
    modality: str
    seq: int
    units: int
    eos: bool
    text: str = ""
    ref: PayloadRef | None = None
    lease: Lease | None = None
    reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFinished:
    """The stage has nothing more to do for the request; every message and output of it was put before this."""

    uid: int
    t_ns: int
    reason: FinishReason
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailed:
    """The stage gives the request up with an error. Its state is dropped, its delivered leases are released."""

    uid: int
    t_ns: int
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCancelled:
    """Answer to `Cancel`: nothing of the request is left in this process. Also sent if it was over already."""

    uid: int
    t_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageIdle:
    """The last request has left this process. `gauges` are (name, value) pairs of what it still holds: all are 0."""

    t_ns: int
    gauges: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReady:
    """Loaded and warmed up. `facts` are (name, value) pairs for the trace: device, dtype, weights in bytes, seconds."""

    t_ns: int
    pid: int
    facts: tuple[tuple[str, str], ...]


StageEvent = (
    InputReady
    | Scheduled
    | StepDone
    | MessagePut
    | MessageGot
    | LeaseReleased
    | OutputProduced
    | StageFinished
    | StageFailed
    | StageCancelled
    | StageIdle
    | ProcessReady
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """All that a process has to tell since its last report, at most one per turn of its loop. `seq` counts from 0 in
    each of its lives; `generation` is which of them it is."""

    process: str
    seq: int
    events: tuple[StageEvent, ...]
    generation: int = 0
