"""The interface of a model runner: what a stage computes. Chosen by family and stage; the worker drives it."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stages.errors import ErrorInfo
from stages.events import FinishReason
from stages.messages import StageRequest
from stages.payload import Payload
from stages.schedulers.base import Denoising, KVCapacity, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """What a row hands on to the stages it feeds: `units` more units, as a payload that can be concatenated.

    Along a stream, tensors of one name have one dtype and one trailing shape, so that a complete edge is the
    concatenation of its pieces along dimension 0; of scalars with one name the last one holds. The payload's memory is
    read until the message is put, which may be steps later: the runner must not write to it again.
    """

    consumer: str
    units: int
    payload: Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A piece of a final output: `text`, or a payload with a tensor named after the modality's type.

    The type is the modality up to its first underscore: `audio` and `audio_mix` both carry a tensor `audio`.
    """

    modality: str
    units: int
    text: str = ""
    payload: Payload | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """What one row did. `finished` ends the request in this stage: its streams and outputs end with this row.

    A row with `error` failed alone; the other rows of the step stand. `tokens` is how many of the row's tokens were
    computed, where that is not all of them (None: all, or none where the row did fewer units than it was given): with
    0 tokens and 0 units a row has done something else first, an encoder's work, and is offered again.
    """

    uid: int
    units: int
    tokens: int | None = None
    finished: FinishReason | None = None
    emissions: tuple[Emission, ...] = ()
    outputs: tuple[Output, ...] = ()
    error: ErrorInfo | None = None


class ModelRunner(Protocol):
    """Computes rows. Holds the state of every request between `begin` and `end`."""

    def load(self) -> tuple[tuple[str, str], ...]:
        """Loads weights and returns facts for the process-ready event (device, dtype, weight bytes ...)."""
        ...

    def warm_up(self) -> None:
        """Runs the real code path once, so that the first request is not slower than the fifth."""
        ...

    def begin(self, request: StageRequest) -> None:
        """A request was taken on. Raises RequestRefused for what this stage cannot do."""
        ...

    def feed(self, uid: int, producer: str, payload: Payload, eos: bool) -> None:
        """A message of an input stream: read, converted, copied where it is kept. The payload's memory is gone after
        the call returns. This is the stage input processor's place."""
        ...

    def prompt_tokens(self, uid: int) -> int:
        """The length of the request's prompt in the stage's own sequence, at least 1. Asked once, as soon as the input
        contract is satisfied. Raises RequestRefused for a prompt that is too long for the model."""
        ...

    def kv_capacity(self) -> KVCapacity | None:
        """The KV cache that the stage has, after `load`; None for a stage without one."""
        return None

    def preempt(self, uids: tuple[int, ...]) -> None:
        """The KV blocks of these requests were taken back. Called before the step that may give them to others; the
        requests keep what they have generated and are prefilled again, from a row with `start` 0. Without a KV cache
        there is nothing to take back."""
        return

    def counters(self) -> tuple[tuple[str, int], ...]:
        """What the last step ran, as (name, count) pairs for the step event: graph replays, kernels, frames of
        context. It proves which path a step took; empty where there is only one."""
        return ()

    def execute(self, rows: tuple[Row, ...]) -> tuple[RowResult, ...]:
        """One step over all rows; one result a row, in order. An exception fails every row of the step."""
        ...

    def end(self, uid: int) -> None:
        """Drops a request's state, after its end, failure or abort. Never raises for a known uid."""
        ...

    def close(self) -> None:
        """Frees everything, before the process exits."""
        ...


@runtime_checkable
class Denoiser(Protocol):
    """What a `diffusion` stage's runner says in addition."""

    def denoising(self, uid: int) -> Denoising:
        """What the request asks for; known once its input is there."""
        ...
