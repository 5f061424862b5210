"""The connector `shm`: one copy into a preallocated ring, read in place. Knows neither torch nor numpy.

The writer alone changes the ring; a reader never writes, so that a killed reader can leave nothing half done.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from stages.config import RingSpec
from stages.connectors.allocator import FirstFit
from stages.connectors.gather import Gathered, gather
from stages.connectors.ring import FREE, WRITTEN, Ring, Slot
from stages.errors import PayloadTooLarge, StageError
from stages.lease import Lease
from stages.payload import Payload, PayloadRef, view


class StaleReference(StageError):
    """A reference to a slot that holds something else by now: a lease was ended before its reader was done."""


class ShmWriter:
    """The producer's end. `numbers` gives lease numbers, shared by all writers of the process `owner`."""

    def __init__(self, spec: RingSpec, owner: str, numbers: Iterator[int]) -> None:
        self._spec = spec
        self._owner = owner
        self._numbers = numbers
        self._ring = Ring(spec.segment, writable=True)
        taken = self._ring.live_slots()
        if taken:  # of a dead producer; somebody may still read them
            raise StageError(f"ring {spec.segment} has live slots {taken}: a new producer needs a ring of its own")
        self._space = FirstFit(self._ring.data_bytes, range(self._ring.slots))
        self._held: dict[int, int] = {}  # lease number -> slot

    def free_slots(self) -> int:
        return self._space.free_slots

    def put(self, pieces: Sequence[Payload]) -> tuple[PayloadRef, Lease] | None:
        return self.write(gather(pieces))

    def write(self, gathered: Gathered) -> tuple[PayloadRef, Lease] | None:
        """As `put`; what has stayed on a device is not written. Nothing is copied, and nothing held, without room."""
        nbytes = gathered.nbytes
        if nbytes > self._ring.data_bytes:
            raise PayloadTooLarge(
                f"a payload of {nbytes} bytes can never fit ring {self._spec.segment} of {self._ring.data_bytes} "
                f"bytes; make it larger with {self._spec.key}"
            )
        found = self._space.allocate(nbytes)
        if found is None:
            return None
        slot, start = found
        try:
            gathered.fill(self._ring.data, start)
        except BaseException:  # the device has failed
            self._space.free(slot)
            raise
        number = next(self._numbers)
        self._ring.mark(slot, Slot(state=WRITTEN, lease=number, offset=start, length=nbytes))
        self._held[number] = slot
        ref = PayloadRef(
            tensors=gathered.tensors,
            meta=gathered.meta,
            nbytes=nbytes,
            segment=self._spec.segment,
            slot=slot,
            offset=start,
        )
        return ref, Lease(owner=self._owner, number=number, slot=slot)

    def reclaim(self, lease: Lease) -> None:
        if lease.owner != self._owner or self._held.get(lease.number) != lease.slot:
            raise ValueError(f"{lease} is not held in ring {self._spec.segment}")
        del self._held[lease.number]
        self._space.free(lease.slot)
        self._ring.mark(lease.slot, Slot(state=FREE, lease=lease.number, offset=0, length=0))

    def close(self) -> None:
        self._ring.close()


class ShmReader:
    """The consumer's end: one ring per replica of the producer, and those of dead ones that are not read to the end."""

    def __init__(self, specs: Iterable[RingSpec]) -> None:
        self._rings: dict[str, Ring] = {}
        for spec in specs:
            self.attach(spec)

    def attach(self, ring: RingSpec) -> None:
        if ring.segment not in self._rings:
            # Gone, if its producer has died meanwhile and left nothing in it: then nobody will be sent to it.
            with contextlib.suppress(FileNotFoundError):
                self._rings[ring.segment] = Ring(ring.segment)

    def detach(self, segment: str) -> None:
        ring = self._rings.pop(segment, None)
        if ring is not None:
            ring.close()

    def get(self, ref: PayloadRef) -> Payload:
        """Raises StaleReference if the slot does not hold that payload (any more)."""
        if ref.inline is not None:
            return view(ref.tensors, ref.meta, memoryview(ref.inline))
        ring = self._rings.get(ref.segment)
        if ring is None:
            raise StaleReference(f"ring {ref.segment} is not attached: its producer is dead, or it was never there")
        slot = ring.slot(ref.slot)
        if slot.state != WRITTEN or slot.offset != ref.offset or slot.length != ref.nbytes:
            raise StaleReference(f"slot {ref.slot} of ring {ref.segment} no longer holds the payload: {slot}")
        return view(ref.tensors, ref.meta, ring.data[ref.offset : ref.offset + ref.nbytes])

    def close(self) -> None:
        for ring in self._rings.values():
            ring.close()
