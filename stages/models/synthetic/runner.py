"""What the runners of all synthetic stages share: a state for each request, rows that fail alone, ballast, warm-up."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from stages.config import StageSpec
from stages.errors import RequestRefused, StageError, describe
from stages.events import FinishReason
from stages.messages import REQUEST, ChatMessage, Part, StageRequest
from stages.models.registry import contract
from stages.models.synthetic.cache import BlockCache
from stages.models.synthetic.faults import Faults
from stages.models.synthetic.options import AT_LOAD, SyntheticOptions
from stages.payload import Payload, Tensor
from stages.runners.base import Emission, ModelRunner, RowResult
from stages.schedulers.base import KVCapacity, Row

_REASON = "finish_reason"
_WARM_UP = -1  # a uid that no request has


@dataclass(slots=True)
class Stream:
    """What a request keeps of one input: the rows of its tensor, one after the other, and why it ended."""

    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    messages: int = 0
    reason: FinishReason | None = None


@dataclass(slots=True)
class State:
    """A request in a stage. A producer that does not feed it has a stream that has ended."""

    request: StageRequest
    options: SyntheticOptions
    streams: dict[str, Stream] = field(init=False)

    def __post_init__(self) -> None:
        self.streams = {producer: Stream() for producer in self.request.inputs}

    def stream(self, producer: str) -> Stream:
        return self.streams.get(producer) or _ENDED


_ENDED = Stream(ended=True)

S = TypeVar("S", bound=State)


class SyntheticRunner(ModelRunner, ABC, Generic[S]):
    """Implements ModelRunner but for `compute`. `state` is what it keeps of a request, `tensor` the name of what its
    inputs carry."""

    state: Callable[[StageRequest, SyntheticOptions], S]
    tensor: str

    def __init__(self, spec: StageSpec, sleep: Callable[[float], None] = time.sleep) -> None:
        self._spec = spec
        self._stage = spec.stage
        options_type: type[SyntheticOptions] = contract(spec.family).options or SyntheticOptions
        self._defaults = spec.options if isinstance(spec.options, options_type) else options_type()
        self._plain = options_type()
        self._sleep = sleep
        self._faults = Faults(spec.stage, sleep)
        self._modes = {edge.consumer: edge.mode for edge in spec.consumers}
        self._states: dict[int, S] = {}
        blocks, block_tokens = spec.tuning.kv_blocks or 0, spec.tuning.kv_block_tokens or 1
        self._cache = BlockCache(KVCapacity(blocks=blocks, block_tokens=block_tokens)) if blocks else None

    def load(self) -> tuple[tuple[str, str], ...]:
        self._faults.load(self._defaults)
        return (("device", "cpu"), ("dtype", self._defaults.dtype), ("weight_bytes", "0"))

    def warm_up(self) -> None:
        request = StageRequest(
            uid=_WARM_UP,
            seed=0,
            inputs=(),
            consumers=(),
            outputs=(),
            conversation=(ChatMessage(role="user", parts=(Part(kind="text", text="warm"),)),),
        )
        self._states[_WARM_UP] = state = self.state(request, self._plain)
        self.compute(Row(uid=_WARM_UP, phase="prefill", position=0, units=1), state)
        self.end(_WARM_UP)

    def begin(self, request: StageRequest) -> None:
        own = self._defaults
        options: SyntheticOptions = request.options if request.options is not None else own
        fails_at_load = options.fail.stage is not None and options.fail.at == AT_LOAD
        if options.init_delay_s != own.init_delay_s or (fails_at_load and options.fail != own.fail):
            raise RequestRefused("init_delay_s and fail.at=-1 are knobs of the deployment: a request comes too late")
        self._states[request.uid] = self.state(request, options)

    def feed(self, uid: int, producer: str, payload: Payload, eos: bool) -> None:
        state = self._states[uid]
        stream = state.streams[producer]
        if payload.tensors:
            if state.options.payload_bytes and producer != REQUEST:
                _check_ballast(state, stream, payload)
            self.take(state, stream, payload)
            stream.messages += 1
        stream.ended = eos
        if eos and payload.meta:
            stream.reason = cast("FinishReason", payload.scalar(_REASON))

    def take(self, state: S, stream: Stream, payload: Payload) -> None:
        """Keeps what a message brings."""
        stream.data += payload.tensor(self.tensor).data

    def execute(self, rows: tuple[Row, ...]) -> tuple[RowResult, ...]:
        self._faults.step(self._states[row.uid].options for row in rows)
        return tuple(self._row(row) for row in rows)

    def _row(self, row: Row) -> RowResult:
        state = self._states[row.uid]
        try:
            if self._cache is not None:
                self._cache.compute(row)
                if not row.units:  # a chunk of the prompt, or of what was lost
                    return RowResult(uid=row.uid, units=0)
            self._faults.units(state.options, row.position, row.units)
            return self.compute(row, state)
        except Exception as error:
            return RowResult(uid=row.uid, units=0, error=describe(error, self._stage))

    def prompt_tokens(self, uid: int) -> int:
        return self._states[uid].options.prompt_tokens

    def kv_capacity(self) -> KVCapacity | None:
        return None if self._cache is None else self._cache.capacity

    def preempt(self, uids: tuple[int, ...]) -> None:
        if self._cache is not None:
            for uid in uids:
                self._cache.forget(uid)

    def end(self, uid: int) -> None:
        del self._states[uid]
        if self._cache is not None:
            self._cache.forget(uid)

    def close(self) -> None:
        self._states.clear()

    def emissions(self, state: S, tensor: Tensor, position: int, finished: FinishReason | None) -> tuple[Emission, ...]:
        """One unit for every consumer, with ballast in each message that this becomes. The last one says why it is."""
        if not state.options.payload_bytes:
            payload = Payload(tensors=(tensor,), meta=_meta(finished))
            return tuple(Emission(consumer=c, units=1, payload=payload) for c in state.request.consumers)
        return tuple(
            Emission(consumer=c, units=1, payload=self._loaded(state, tensor, position, finished, c))
            for c in state.request.consumers
        )

    def _loaded(self, state: S, tensor: Tensor, position: int, finished: FinishReason | None, consumer: str) -> Payload:
        message = position if self._modes[consumer] == "incremental" else 0
        if self._modes[consumer] == "complete" and finished is None:
            return Payload(tensors=(tensor,))
        size = state.options.payload_bytes
        data = memoryview(bytes((_ballast(state.request.uid, message),)) * size)
        ballast = Tensor(name="ballast", dtype="uint8", shape=(size,), data=data)
        return Payload(tensors=(tensor, ballast), meta=_meta(finished))

    @abstractmethod
    def compute(self, row: Row, state: S) -> RowResult:
        """One row; what it raises fails this request alone."""


def ended(done: int, units: int, limit: int | None) -> FinishReason | None:
    """Why the stage ends after `done` units; None if it goes on."""
    if done == units:
        return "stop"
    return "length" if done == limit else None


def _meta(finished: FinishReason | None) -> tuple[tuple[str, str], ...]:
    return () if finished is None else ((_REASON, finished),)


def _ballast(uid: int, message: int) -> int:
    return (uid * 31 + message) & 0xFF


def _check_ballast(state: State, stream: Stream, payload: Payload) -> None:
    """At both ends and in the middle: all of it would cost more than what it loads."""
    data = payload.tensor("ballast").data
    size, uid = state.options.payload_bytes, state.request.uid
    if len(data) != size or {data[0], data[size // 2], data[-1]} != {_ballast(uid, stream.messages)}:
        raise StageError(f"message {stream.messages} of request {uid} carries ballast that is not its own")
