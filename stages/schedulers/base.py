"""The interface of a scheduler: what a stage does next, with what batch. Pure data in and out; no clock, no tensors.

`schedule()` picks rows, the runner computes them, `update()` takes the results; as in vLLM v1's scheduler interface.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from stages.config import EdgeMode
from stages.events import FinishReason
from stages.messages import StageRequest

KV_BLOCKS = "kv_blocks"  # the gauge of the KV blocks that are in use

Phase = Literal["prefill", "decode", "forward", "encode", "denoise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A request's share of the next step: from `position`, at most `units` of the stage's own units.

    Of `llm_ar`: the request's sequence is its prompt and then the tokens that it has generated. The row computes
    `tokens` of it, from index `start`: 1 for decode, a chunk for prefill. Only the chunk that reaches the end of the
    sequence has a unit, the next token. `blocks` are the KV blocks that are given to the request with this row; they
    go behind those that it has. A row with `start` 0 starts anew: what the request had before is not its own any more.

    Of `diffusion`: a unit is a denoising step. Rows that encode a prompt or decode a latent have none.
    """

    uid: int
    phase: Phase
    position: int
    units: int
    start: int = 0
    tokens: int = 0
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that can never go on here, and why."""

    uid: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """The next step, which may be without rows.

    The KV blocks of the requests in `preempted` were taken back before it: each of them will see its prompt and its
    generated tokens prefilled again, from `start` 0, and produces nothing until the last chunk. Those in `refused` have
    outgrown the whole KV cache; the caller aborts them.
    """

    rows: tuple[Row, ...]
    preempted: tuple[int, ...] = ()
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProgress:
    """What became of a row: `units` done, `finished` with a reason, or `failed`.

    `tokens` is how many of the row's tokens were computed; None is all of them, or none for a row that did fewer units
    than it was given.
    """

    uid: int
    units: int
    tokens: int | None = None
    finished: FinishReason | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Denoising:
    """What a request asks of a `diffusion` stage: `steps` steps, each over `tokens` latent tokens, those of its
    unconditional row included. Requests of one `shape` can share a step. `pictures` are to be encoded before it. After
    every `preview_every` steps the latents are decoded as they are; 0 is never."""

    steps: int
    tokens: int
    shape: tuple[int | str, ...]
    pictures: int = 0
    preview_every: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCapacity:
    """The KV cache of a stage: `blocks` of `block_tokens` tokens each, numbered from 0."""

    blocks: int
    block_tokens: int


class Scheduler(Protocol):
    """Owns which requests this stage holds and where each of them stands."""

    def add(self, request: StageRequest, modes: Mapping[str, EdgeMode]) -> bool:
        """Takes a request on; `modes` gives the input contract per producer. True if it is ready to run already."""
        ...

    def extend(self, uid: int, producer: str, units: int, eos: bool) -> bool:
        """An input stream has grown by `units`. True the first time that the input contract is satisfied by it."""
        ...

    def size(self, uid: int, tokens: int) -> None:
        """Says how long the prompt is, in tokens of the stage's sequence, once the input contract is satisfied.

        Raises RequestRefused for a prompt that can never fit, with the numbers and the key.
        """
        ...

    def abort(self, uid: int) -> None:
        """Forgets a request, at any point. An unknown uid is an error of the caller (KeyError)."""
        ...

    def schedule(self, credits: Mapping[str, int], held: frozenset[int]) -> SchedulerOutput | None:
        """The next step, or None if nothing can run.

        `credits` is the number of free slots per consumer for incremental edges; a row takes one of each of its
        consumers. Rows in `held` (a put of theirs waits for space) are skipped.
        """
        ...

    def update(self, progress: tuple[RowProgress, ...]) -> None:
        """Takes in what a step did; finished and failed requests are forgotten."""
        ...

    def gauges(self) -> tuple[tuple[str, int], ...]:
        """What is held now, as (name, value) pairs: each is 0 when no request is here."""
        ...

    def __contains__(self, uid: int) -> bool: ...

    def __len__(self) -> int: ...
