"""The interface of a connector: how payloads reach the consumer of an edge and when their memory is free again.

The producer owns the memory. put -> (grant) -> get -> release (by the reader, told by an event) -> reclaim.
Nothing is overwritten or unlinked while a granted reader may still read.
"""

from collections.abc import Sequence
from typing import Protocol

from stages.config import RingSpec
from stages.lease import Lease
from stages.payload import Payload, PayloadRef


class ConnectorWriter(Protocol):
    """The producer's end of an edge."""

    def free_slots(self) -> int:
        """Credit: how many more messages can be put now, as far as slots are concerned."""
        ...

    def put(self, pieces: Sequence[Payload]) -> tuple[PayloadRef, Lease | None] | None:
        """Copies the pieces, concatenated by tensor name along dimension 0, once, into the transport.

        None if there is no room now: try again after a reclaim. Raises PayloadTooLarge if there can never be room.
        The lease is None for inline payloads.
        """
        ...

    def reclaim(self, lease: Lease) -> None:
        """The reader has released: the slot is free. Raises ValueError for a lease that is not held."""
        ...

    def close(self) -> None: ...


class ConnectorReader(Protocol):
    """The consumer's end of an edge."""

    def get(self, ref: PayloadRef) -> Payload:
        """The payload, in place; valid until the lease's release is reported."""
        ...

    def attach(self, ring: RingSpec) -> None:
        """A replica of the producer writes this ring from now on; nothing happens if it is gone already."""
        ...

    def detach(self, segment: str) -> None:
        """Nothing in this ring will be read any more. May be unknown."""
        ...

    def close(self) -> None: ...
