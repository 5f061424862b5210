"""The right to read one slot of a ring. Granted by the producer's put, ended by the reader's release."""

from dataclasses import dataclass

_GENERATION_BITS = 32  # a process puts fewer messages than that in one life


def first_number(generation: int) -> int:
    """Where a process of that generation begins to count its leases: no other one of its name can have been there."""
    return generation << _GENERATION_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """`number` counts up per producing process and is never reused; (`owner`, `number`) is unique in a run.

    `owner` is the process whose ring it is (`thinker.0`; `request.thinker` for the ring by which the parent feeds it),
    `slot` the slot.
    """

    owner: str
    number: int
    slot: int

    @property
    def generation(self) -> int:
        """Which life of the owner wrote the slot."""
        return self.number >> _GENERATION_BITS
