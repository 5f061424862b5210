"""Gives requests and their messages to replicas, or keeps them while there is no room or no live replica.

It must not judge what a stage answers.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from omni_cli.runtime import events
from omni_cli.runtime.books import Books
from omni_cli.runtime.flight import Flight
from omni_cli.runtime.lifecycle import REQUEST_ENDED, Stage
from omni_cli.runtime.media_gate import MediaGate
from omni_cli.runtime.retry import Retries
from omni_cli.runtime.stage_pool import NoReplica
from stages.errors import ErrorInfo, PayloadTooLarge, describe
from stages.messages import Deliver, StreamMessage, Submit


class Dispatcher:
    """`fail(uid, error)` ends a request that cannot be given to anybody."""

    def __init__(
        self,
        books: Books,
        flights: Mapping[int, Flight],
        media: MediaGate,
        retries: Retries,
        fail: Callable[[int, ErrorInfo], None],
    ) -> None:
        self._books = books
        self._flights = flights
        self._media = media
        self._retries = retries
        self._fail = fail
        self._waiting: deque[int] = deque()

    def admit(self, uid: int) -> None:
        """It enters its first stages at the next `enter_waiting`, or later."""
        self._waiting.append(uid)

    def enter_waiting(self) -> None:
        """Submits admitted requests in order, as far as their media find room and their first stages live."""
        while self._waiting:
            uid = self._waiting[0]
            flight = self._flights.get(uid)
            if flight is not None and self._books.lifecycle.requests[uid].state not in REQUEST_ENDED:
                try:
                    if not self._enter(uid, flight):
                        return
                except (NoReplica, PayloadTooLarge) as error:
                    self._fail(uid, describe(error, flight.route.entries[0]))
            self._waiting.popleft()

    def _enter(self, uid: int, flight: Flight) -> bool:
        """False if it has to wait; nothing has happened then."""
        if not all(self._books.replicas.serves(stage) for stage in flight.route.entries):
            return False
        messages = self._media.put(uid, flight.route, flight.request.media)
        if messages is None:
            return False
        for message in messages:
            self._books.enter(
                events.MediaPut(
                    t_ns=self._books.clock(),
                    uid=uid,
                    consumer=message.consumer,
                    lease=message.lease,
                    nbytes=message.ref.nbytes if message.ref else 0,
                )
            )
        stages = self._books.lifecycle.requests[uid].stages
        for stage in flight.route.entries:
            if stage not in stages or stages[stage].state is Stage.LOST:
                self._submit(uid, stage)
        for message in messages:
            self._deliver(uid, message)
        return True

    def pass_on(self, uid: int, message: StreamMessage) -> None:
        """A message to its consumer. The first one submits the request there, to a replica that then keeps it."""
        parked = self._flights[uid].parked
        if message.consumer in self._books.lifecycle.requests[uid].stages and message.consumer not in parked:
            self._deliver(uid, message)
        else:
            parked.setdefault(message.consumer, []).append(message)
            self.unpark(message.consumer, (uid,))

    def run_again(self, uid: int, stage: str) -> None:
        """A request that a dead replica had, as if the stage had not had it yet."""
        flight = self._flights[uid]
        if stage in flight.route.entries:
            self._waiting.appendleft(uid)
        else:
            flight.parked[stage] = flight.given.pop(stage, [])
            self.unpark(stage, (uid,))

    def unpark(self, stage: str, uids: Iterable[int] = ()) -> None:
        """Gives what waits for a live replica of the stage to one, of all requests unless some are named."""
        for uid in uids or tuple(self._flights):
            flight = self._flights.get(uid)
            if flight is None or stage not in flight.parked:
                continue
            try:
                if not self._books.replicas.serves(stage):
                    return
                messages = flight.parked.pop(stage)
                self._submit(uid, stage)
            except NoReplica as error:
                self._fail(uid, describe(error, stage))
                continue
            for message in messages:
                self._deliver(uid, message)

    def _submit(self, uid: int, stage: str) -> None:
        request = self._flights[uid].stage_request(uid, stage)
        process = self._books.replicas.pick(stage, uid)
        self._books.enter(
            events.StageSubmitted(
                t_ns=self._books.clock(), uid=uid, stage=stage, process=process, waits_for=request.inputs
            )
        )
        self._books.say(process, Submit(request=request))

    def _deliver(self, uid: int, message: StreamMessage) -> None:
        reader = self._books.lifecycle.requests[uid].stages[message.consumer].process
        kept = self._retries.keep(uid, message)
        if message.lease is not None:
            self._books.enter(
                events.LeaseGranted(
                    t_ns=self._books.clock(),
                    uid=uid,
                    lease=message.lease,
                    producer=message.producer,
                    reader=reader,
                    seq=message.seq,
                    kept=kept,
                )
            )
        self._books.say(reader, Deliver(message=message))
