"""The connector `inline`: the bytes travel within the message, up to 64 KiB of them. Has no slots and no leases."""

from collections.abc import Sequence

from stages.config import RingSpec
from stages.connectors.gather import gather
from stages.errors import PayloadTooLarge
from stages.lease import Lease
from stages.payload import Payload, PayloadRef, view

INLINE_MAX_BYTES = 64 << 10
UNLIMITED = 1 << 30  # credit of a connector without slots


class InlineWriter:
    """`key` is the configuration key that chooses another connector for the edge."""

    def __init__(self, key: str) -> None:
        self._key = key

    def free_slots(self) -> int:
        return UNLIMITED

    def put(self, pieces: Sequence[Payload]) -> tuple[PayloadRef, Lease | None] | None:
        gathered = gather(pieces)
        if gathered.nbytes > INLINE_MAX_BYTES:
            raise PayloadTooLarge(
                f"a payload of {gathered.nbytes} bytes cannot travel inline (at most {INLINE_MAX_BYTES}); "
                f"set {self._key}=shm"
            )
        data = bytearray(gathered.nbytes)
        gathered.fill(memoryview(data))
        ref = PayloadRef(tensors=gathered.tensors, meta=gathered.meta, nbytes=gathered.nbytes, inline=bytes(data))
        return ref, None

    def reclaim(self, lease: Lease) -> None:
        raise ValueError(f"{lease} is not held: inline payloads have no lease")

    def close(self) -> None:
        pass


class InlineReader:
    def get(self, ref: PayloadRef) -> Payload:
        """Raises ValueError for a reference into a ring."""
        if ref.inline is None:
            raise ValueError(f"payload in slot {ref.slot} of {ref.segment!r} came over an inline edge")
        return view(ref.tensors, ref.meta, memoryview(ref.inline))

    def attach(self, ring: RingSpec) -> None:
        raise ValueError(f"an inline edge has no ring {ring.segment}")

    def detach(self, segment: str) -> None:
        raise ValueError(f"an inline edge has no ring {segment}")

    def close(self) -> None:
        pass
