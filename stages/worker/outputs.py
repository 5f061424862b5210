"""All that a stage hands on: streams to its consumers, pieces of final outputs to the parent.

A complete edge gets one message with everything, an incremental one a message a step; the last payload and the end are
one message. What finds no room waits, in order, until a slot comes back; its request is held meanwhile.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from stages.config import EdgeSpec
from stages.connectors.base import ConnectorWriter
from stages.connectors.gather import gather
from stages.connectors.inline import INLINE_MAX_BYTES, InlineWriter
from stages.errors import StageError
from stages.events import FinishReason, MessagePut, OutputProduced, StageEvent
from stages.lease import Lease
from stages.messages import REQUEST, StageRequest, StreamMessage
from stages.payload import Payload, PayloadRef
from stages.runners.base import Output, RowResult


@dataclass(slots=True)
class _Put:
    """One message to `consumer`, or one piece of `modality`.

    `sink` is the edge whose room it needs; empty if it carries nothing or goes within the report.
    """

    uid: int
    sink: str
    pieces: tuple[Payload, ...]
    units: int
    eos: bool
    consumer: str = ""
    modality: str = ""
    text: str = ""
    reason: FinishReason | None = None


@dataclass(slots=True)
class _Sending:
    """A request's outgoing side. `next` numbers messages by consumer and pieces by modality."""

    request: StageRequest
    next: dict[str, int]
    kept: dict[str, list[Payload]] = field(default_factory=dict)
    kept_units: dict[str, int] = field(default_factory=dict)
    waiting: int = 0


class OutputStreams:
    """`writers` has the connector's end for each of `edges`, by consumer; final outputs go to consumer `request`."""

    def __init__(
        self,
        stage: str,
        edges: tuple[EdgeSpec, ...],
        writers: Mapping[str, ConnectorWriter],
        clock: Callable[[], int],
        emit: Callable[[StageEvent], None],
    ) -> None:
        self._stage = stage
        self._modes = {edge.consumer: edge.mode for edge in edges}
        self._writers = writers
        self._inline = InlineWriter(f"deploy.stages.{stage}.output.connector")
        self._clock = clock
        self._emit = emit
        self._incremental = tuple(e.consumer for e in edges if e.mode == "incremental" and e.consumer != REQUEST)
        self._sending: dict[int, _Sending] = {}
        self._waiting: deque[_Put] = deque()
        self._leases: dict[int, ConnectorWriter] = {}

    def open(self, request: StageRequest) -> None:
        """Raises StageError for a consumer to whom this stage has no edge."""
        unknown = [consumer for consumer in request.consumers if consumer not in self._modes]
        if unknown:
            raise StageError(f"request {request.uid} shall feed {unknown}, but stage {self._stage!r} has no such edge")
        names = (*request.consumers, *request.outputs)
        self._sending[request.uid] = _Sending(request, dict.fromkeys(names, 0))

    def close(self, uid: int) -> None:
        """Drops what has not been put. What has been put is its reader's. May be called twice."""
        sending = self._sending.pop(uid, None)
        if sending is not None and sending.waiting:
            self._waiting = deque(put for put in self._waiting if put.uid != uid)

    def credits(self) -> dict[str, int]:
        """Free slots by incremental consumer; none where somebody is waiting for room already."""
        taken = {put.sink for put in self._waiting}
        return {c: 0 if c in taken else self._writers[c].free_slots() for c in self._incremental}

    def held(self) -> frozenset[int]:
        """Requests with something that waits for room."""
        return frozenset(put.uid for put in self._waiting)

    def push(self, result: RowResult) -> bool:
        """Puts what a row has produced; False if some of it has to wait.

        Raises PayloadTooLarge, ValueError for pieces that do not fit together, StageError for what nobody asked for.
        """
        sending = self._sending[result.uid]
        taken = {put.sink for put in self._waiting}
        for put in (*self._messages(sending, result), *_pieces(sending.request, result)):
            if sending.waiting or (put.sink and put.sink in taken) or not self._put(sending, put):
                self._waiting.append(put)
                sending.waiting += 1
        return not sending.waiting

    def reclaim(self, lease: Lease) -> None:
        """Raises ValueError for a lease that is not held."""
        writer = self._leases.pop(lease.number, None)
        if writer is None:
            raise ValueError(f"{lease} is not held by stage {self._stage!r}")
        writer.reclaim(lease)

    def retry(self, failed: Callable[[int, Exception], None]) -> list[int]:
        """Puts what waits, as far as there is room; returns the requests that are held no longer.

        `failed` is told of each request that can never go on; it has to close it.
        """
        freed: list[int] = []
        blocked: set[int | str] = set()
        waiting, self._waiting = self._waiting, deque()
        while waiting:
            put = waiting.popleft()
            sending = self._sending.get(put.uid)
            if sending is None:
                continue  # failed a moment ago
            try:
                done = not ({put.uid, put.sink} & blocked) and self._put(sending, put)
            except Exception as error:
                failed(put.uid, error)
                continue
            if not done:
                blocked |= {put.uid, put.sink} if put.sink else {put.uid}
                self._waiting.append(put)
                continue
            sending.waiting -= 1
            if not sending.waiting:
                freed.append(put.uid)
        return freed

    def _messages(self, sending: _Sending, result: RowResult) -> Iterator[_Put]:
        uid, eos = result.uid, result.finished is not None
        for emission in result.emissions:
            if emission.consumer not in sending.request.consumers:
                raise StageError(f"request {uid}: the runner emits to {emission.consumer!r}, who is not fed by it")
            sending.kept.setdefault(emission.consumer, []).append(emission.payload)
            sending.kept_units[emission.consumer] = sending.kept_units.get(emission.consumer, 0) + emission.units
        for consumer in sending.request.consumers:
            if eos or (consumer in sending.kept and self._modes[consumer] == "incremental"):
                pieces = tuple(piece for piece in sending.kept.pop(consumer, ()) if piece.tensors or piece.meta)
                units = sending.kept_units.pop(consumer, 0)
                yield _Put(uid, consumer if pieces else "", pieces, units, eos, consumer=consumer)

    def _put(self, sending: _Sending, put: _Put) -> bool:
        ref, lease = None, None
        if put.pieces:
            writer = self._writers.get(put.sink, self._inline) if put.sink else self._inline
            found = writer.put(put.pieces)
            if found is None:
                return False
            ref, lease = found
            if lease is not None:
                self._leases[lease.number] = writer
        self._tell(sending, put, ref, lease)
        return True

    def _tell(self, sending: _Sending, put: _Put, ref: PayloadRef | None, lease: Lease | None) -> None:
        name = put.consumer or put.modality
        seq = sending.next[name]
        sending.next[name] = seq + 1
        now = self._clock()
        if put.consumer:
            message = StreamMessage(
                uid=put.uid,
                producer=self._stage,
                consumer=put.consumer,
                seq=seq,
                units=put.units,
                eos=put.eos,
                ref=ref,
                lease=lease,
            )
            self._emit(MessagePut(uid=put.uid, t_ns=now, message=message))
            return
        self._emit(
            OutputProduced(
                uid=put.uid,
                t_ns=now,
                modality=put.modality,
                seq=seq,
                units=put.units,
                eos=put.eos,
                text=put.text,
                ref=ref,
                lease=lease,
                reason=put.reason,
            )
        )


def _pieces(request: StageRequest, result: RowResult) -> Iterator[_Put]:
    """The row's pieces of final outputs; with the last row every output ends, if need be with an empty piece."""
    by_modality: dict[str, list[Output]] = {modality: [] for modality in request.outputs}
    for output in result.outputs:
        if output.modality not in by_modality:
            raise StageError(f"request {request.uid}: the runner makes {output.modality!r}, which nobody asked for")
        by_modality[output.modality].append(output)
    for modality, outputs in by_modality.items():
        if result.finished is not None and not outputs:
            outputs.append(Output(modality=modality, units=0))
        for output in outputs:
            eos = result.finished is not None and output is outputs[-1]
            yield _Put(
                request.uid,
                _output_sink(output),
                (output.payload,) if output.payload is not None else (),
                output.units,
                eos,
                modality=modality,
                text=output.text,
                reason=result.finished if eos else None,
            )


def _output_sink(output: Output) -> str:
    """Small pieces travel within the report, large ones through the stage's output ring."""
    if output.payload is None:
        return ""
    return REQUEST if gather((output.payload,)).nbytes > INLINE_MAX_BYTES else ""
