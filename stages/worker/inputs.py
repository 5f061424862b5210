"""The input streams of the requests in this process: in order, read once, and every lease given back.

Whatever is delivered is released, also for a request that failed, was cancelled or had enough. What a message means is
the runner's business (`feed`); this module must not look into a payload.
"""

from collections.abc import Callable, Mapping

from stages.config import RingSpec
from stages.connectors.base import ConnectorReader
from stages.errors import StageError
from stages.events import LeaseReleased, MessageGot, StageEvent
from stages.messages import StageRequest, StreamMessage
from stages.payload import Payload
from stages.runners.base import ModelRunner

_NOTHING = Payload()


class StreamBroken(StageError):
    """A message came out of order, after the end, or from nobody who feeds this request."""


class InputStreams:
    """`readers` has the connector's end for each producer."""

    def __init__(
        self,
        readers: Mapping[str, ConnectorReader],
        runner: ModelRunner,
        clock: Callable[[], int],
        emit: Callable[[StageEvent], None],
    ) -> None:
        self._readers = readers
        self._runner = runner
        self._clock = clock
        self._emit = emit
        self._expected: dict[int, dict[str, int]] = {}  # by request and producer; -1 after the end

    def open(self, request: StageRequest) -> None:
        self._expected[request.uid] = dict.fromkeys(request.inputs, 0)

    def close(self, uid: int) -> None:
        """What comes for the request from now on is given back unread. May be called twice."""
        self._expected.pop(uid, None)

    def attach(self, producer: str, ring: RingSpec) -> None:
        self._readers[producer].attach(ring)

    def detach(self, producer: str, segment: str) -> None:
        self._readers[producer].detach(segment)

    def deliver(self, message: StreamMessage) -> bool:
        """Feeds the message to the runner; False if its request is over. The lease is released even if this raises.

        Raises StreamBroken, or whatever the runner raises.
        """
        try:
            expected = self._expected.get(message.uid)
            if expected is None:
                return False
            self._read(message, expected)
            return True
        finally:
            if message.lease is not None:
                self._emit(LeaseReleased(uid=message.uid, t_ns=self._clock(), lease=message.lease))

    def _read(self, message: StreamMessage, expected: dict[str, int]) -> None:
        producer = message.producer
        if expected.get(producer) != message.seq:
            raise StreamBroken(
                f"request {message.uid}: message {message.seq} from {producer!r} where "
                f"{expected.get(producer, 'nothing')} was expected (-1: the stream has ended)"
            )
        payload = _NOTHING if message.ref is None else self._readers[producer].get(message.ref)
        self._runner.feed(message.uid, producer, payload, message.eos)
        _invalidate(payload)
        expected[producer] = -1 if message.eos else message.seq + 1
        self._emit(MessageGot(uid=message.uid, t_ns=self._clock(), producer=producer, seq=message.seq))


def _invalidate(payload: Payload) -> None:
    """Ends the views, so that a runner which kept one gets an error and not another request's data."""
    for tensor in payload.tensors:
        try:
            tensor.release()
        except BufferError as error:
            raise StageError(
                f"the runner kept a view of tensor {tensor.name!r} after `feed`; its memory is gone then: copy it"
            ) from error
