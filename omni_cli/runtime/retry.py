"""Which requests of a dead replica can be run again in their stage, from the same input, without anybody noticing.

It must not submit them itself.
"""

from collections import Counter
from collections.abc import Mapping

from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.books import Books
from omni_cli.runtime.flight import Flight
from omni_cli.runtime.stage_pool import NoReplica
from stages.messages import REQUEST, StreamMessage


class Retries:
    """Keeps what a stage with `retry` was given, until it has handed something on or is done with the request.

    A slot is kept in its ring only for a stage with one such input: with several, two requests could wait for each
    other's room for ever. Half of a ring stays free for what is on its way, so that nobody waits for what is kept.
    """

    def __init__(self, plan: ExecutionPlan, books: Books, flights: Mapping[int, Flight]) -> None:
        self._plan = plan
        self._books = books
        self._flights = flights
        self._keeping = {stage.name for stage in plan.stages if stage.retry}
        self._slots: Counter[tuple[str, str, int]] = Counter()  # kept, by consumer and life of the producer: a ring
        self._bytes: Counter[tuple[str, str, int]] = Counter()

    def keep(self, uid: int, message: StreamMessage) -> bool:
        """To be called when a message is given to its consumer; True if its lease is to outlive the reading."""
        if message.producer == REQUEST or message.consumer not in self._keeping:
            return False
        self._count(message, 1)
        if not self._has_room(message):
            self._count(message, -1)
            self._flights[uid].crowded.add(message.consumer)
            return False
        self._flights[uid].given.setdefault(message.consumer, []).append(message)
        return message.lease is not None

    def _has_room(self, message: StreamMessage) -> bool:
        if message.lease is None:
            return True
        (edge,) = (e for e in self._plan.stage(message.consumer).inputs if e.producer == message.producer)
        ring = message.consumer, message.lease.owner, message.lease.generation
        return 2 * self._slots[ring] <= edge.slots and 2 * self._bytes[ring] <= edge.ring_bytes

    def _count(self, message: StreamMessage, times: int) -> None:
        if message.lease is not None and message.ref is not None:
            ring = message.consumer, message.lease.owner, message.lease.generation
            self._slots[ring] += times
            self._bytes[ring] += times * message.ref.nbytes

    def take(self, uid: int, stage: str) -> list[StreamMessage]:
        """What the stage can be given again. It is not kept any more, and nothing of it is dropped."""
        taken = self._flights[uid].given.pop(stage, [])
        for message in taken:
            self._count(message, -1)
        return taken

    def needs(self, uid: int, stage: str) -> bool:
        """Whether what the stage has read is kept for it."""
        return uid in self._flights and stage in self._flights[uid].given

    def parks(self, uid: int, stage: str) -> bool:
        """Whether what the stage had is to be given to another replica, once there is one."""
        return uid in self._flights and stage in self._flights[uid].parked

    def let_go(self, uid: int, stage: str) -> None:
        """The stage has handed something on, or has ended: it will not be run again."""
        for message in self.take(uid, stage) if self.needs(uid, stage) else ():
            if message.lease is not None and self._books.ledger.is_held(message.lease):
                self._books.drop(uid, message.lease)

    def obstacle(self, uid: int, stage: str, cause: str) -> str | None:
        """Why a request that a dead replica had cannot be run again there, empty if nobody wants that; None if it can.
        Notes the death then."""
        flight, record = self._flights[uid], self._books.lifecycle.requests[uid]
        plan = self._plan.stage(stage)
        if len(flight.deaths.get(stage, ())) >= plan.retry:
            return f"deploy.stages.{stage}.retry is {plan.retry}" if plan.retry else plan.unrepeatable
        emitted = [m for m in flight.route.stages[stage].outputs if record.outputs[m].chunks]
        if emitted:
            return f"a piece of its {' and '.join(emitted)} is with the caller"
        fed = [consumer for (producer, consumer), s in record.streams.items() if producer == stage and s.put]
        if fed:
            return f"it has handed a message to {' and '.join(fed)}"
        if stage in flight.crowded:
            (key,) = (edge.key for edge in plan.inputs if edge.slots)
            return f"its ring had no room to keep its input: raise {key}.ring_bytes, or slots"
        if stage in flight.route.entries and len(flight.route.entries) > 1 and flight.request.media.tensors:
            return "its media went to several first stages"
        try:
            self._books.replicas.serves(stage)
        except NoReplica:
            return "no replica is left"
        flight.deaths.setdefault(stage, []).append(cause)
        return None
