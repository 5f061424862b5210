"""The right to read one slot of a ring. Granted by the producer's put, ended by the reader's release."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """`number` counts up per producing process and is never reused; (`owner`, `number`) is unique in a run.

    `owner` is the process whose ring it is (`thinker.0`; `request.thinker` for the ring by which the parent feeds it),
    `slot` the slot.
    """

    owner: str
    number: int
    slot: int
