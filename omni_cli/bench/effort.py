"""How much is measured. Fewer repetitions give the same figures with more noise."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """`pairs` of blocks of `requests` each, with the trace and without; `hops` each way; `transfers` of a payload;
    `firsts` of requests, each to the server and to the engine.

    What comes first, until everything is warm, is not counted: a block, a tenth of everything else.
    """

    pairs: int
    requests: int
    hops: int
    transfers: int
    firsts: int


FULL = Effort(pairs=60, requests=256, hops=4000, transfers=100, firsts=400)
QUICK = Effort(pairs=2, requests=64, hops=200, transfers=10, firsts=20)
