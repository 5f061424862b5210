"""Gives requests and their messages to replicas, or keeps them until there is room and a live replica.

It must not judge what a stage answers.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from omni_cli.runtime import events
from omni_cli.runtime.books import Books
from omni_cli.runtime.flight import Flight
from omni_cli.runtime.media_gate import MediaGate
from omni_cli.runtime.retry import Retries
from omni_cli.runtime.stage_pool import NoReplica, QueueFull
from stages.errors import ErrorInfo, PayloadTooLarge, describe
from stages.messages import Deliver, StreamMessage, Submit

log = logging.getLogger("omni.runtime")


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
        self.freed: set[str] = set()  # stages with places that nobody was given yet: what they report goes on

    def admit(self, uid: int) -> None:
        """It enters its first stages at the next `enter_waiting`, or later. It fails if one of them is full: here, and
        where it first comes to a later stage, never when it has waited."""
        if all(self._let_in(uid, stage) for stage in self._flights[uid].route.entries):
            self._waiting.append(uid)

    def _let_in(self, uid: int, stage: str) -> bool:
        try:
            self._books.replicas.pools[stage].let_in(uid)
        except QueueFull as error:
            self._fail(uid, describe(error, stage))
            return False
        self._flights[uid].parked[stage] = []
        return True

    def enter_waiting(self) -> None:
        """Submits admitted requests in order, as far as their media find room; who waits for a stage lets others by."""
        passed: list[int] = []
        while self._waiting:
            uid = self._waiting.popleft()
            flight = self._flights.get(uid)
            entries = [stage for stage in flight.route.entries if stage in flight.parked] if flight else []
            if flight is None or not entries:
                continue  # it has ended
            try:
                if not all(self._books.replicas.serves(stage) for stage in entries):
                    passed.append(uid)
                    continue
                messages = self._media.put(uid, flight.route, flight.request.media)
            except (NoReplica, PayloadTooLarge) as error:
                self._fail(uid, describe(error, entries[0]))
                continue
            if messages is None:
                passed.append(uid)
                break
            self._enter(uid, entries, messages)
        self._waiting.extendleft(reversed(passed))
        for stage in sorted(self.freed):
            self.unpark(stage)
        self.freed.clear()

    def _enter(self, uid: int, entries: Iterable[str], media: Iterable[StreamMessage]) -> None:
        for message in media:
            self._books.enter(
                events.MediaPut(
                    t_ns=self._books.clock(),
                    uid=uid,
                    consumer=message.consumer,
                    lease=message.lease,
                    nbytes=message.ref.nbytes if message.ref else 0,
                )
            )
        for stage in entries:
            self._submit(uid, stage)
        for message in media:
            self._deliver(uid, message)

    def pass_on(self, uid: int, message: StreamMessage) -> None:
        """A message to its consumer. The first one submits the request there, to a replica that then keeps it."""
        parked, stage = self._flights[uid].parked, message.consumer
        if stage in self._books.lifecycle.requests[uid].stages and stage not in parked:
            self._deliver(uid, message)
        elif stage in parked or self._let_in(uid, stage):
            parked[stage].append(message)
            self.unpark(stage)

    def run_again(self, uid: int, stage: str) -> None:
        """A request that a dead replica had waits as if the stage had not had it yet: for `unpark`, `enter_waiting`."""
        flight = self._flights[uid]
        flight.parked[stage] = self._retries.take(uid, stage)
        self._books.replicas.pools[stage].waiting.add(uid)
        if stage in flight.route.entries:
            self._waiting = deque(sorted({uid, *self._waiting}))

    def unpark(self, stage: str) -> None:
        """Submits what waits for a later stage, in order, as far as its replicas have room."""
        for uid in sorted(self._books.replicas.pools[stage].waiting):
            if stage in self._flights[uid].route.entries:
                return
            try:
                if not self._books.replicas.serves(stage):
                    return
            except NoReplica as error:
                self._fail(uid, describe(error, stage))
                continue
            self._submit(uid, stage)

    def _submit(self, uid: int, stage: str) -> None:
        """To a replica with room, with what has come for it meanwhile."""
        flight = self._flights[uid]
        request, messages = flight.stage_request(uid, stage), flight.parked.pop(stage)
        process = self._books.replicas.pools[stage].pick(uid)
        self._books.enter(
            events.StageSubmitted(
                t_ns=self._books.clock(), uid=uid, stage=stage, process=process, waits_for=request.inputs
            )
        )
        self._books.say(process, Submit(request=request))
        for death in flight.deaths.get(stage, ())[-1:]:
            log.warning("request %s is run again in stage %s: %s", flight.request.request_id, stage, death)
        for message in messages:
            self._deliver(uid, message)

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
