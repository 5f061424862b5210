"""How much is measured. Fewer repetitions give the same figures with more noise."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """`pairs` of blocks of `requests` each, with the trace and without; `hops` each way; `transfers` of a payload.

    What comes first, until everything is warm, is not counted: a block, a tenth of the hops and of the transfers.
    """

    pairs: int
    requests: int
    hops: int
    transfers: int


FULL = Effort(pairs=60, requests=256, hops=4000, transfers=100)
QUICK = Effort(pairs=2, requests=64, hops=200, transfers=10)
