"""A KV cache without tensors: it keeps whose token lies in each place, and tells a fault where a real one would lie.

The synthetic language stages have one where `deploy.stages.<stage>.kv_blocks` says how large.
"""

from stages.errors import StageError
from stages.schedulers.base import KVCapacity, Row

Cell = tuple[int, int]  # request, index in its sequence


class BlockCache:
    """Block tables by request, filled from rows as a real runner does it."""

    def __init__(self, capacity: KVCapacity) -> None:
        self.capacity = capacity
        self._cells: list[list[Cell | None]] = [[None] * capacity.block_tokens for _ in range(capacity.blocks)]
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def compute(self, row: Row) -> None:
        """Writes a row's tokens and reads all before them. Raises StageError if they are not there, or not its own."""
        if row.start == 0:
            self.forget(row.uid)
        table = self._tables.setdefault(row.uid, [])
        table.extend(row.blocks)
        if row.start != self._lengths.get(row.uid, 0):
            raise StageError(
                f"request {row.uid} goes on at token {row.start}, {self._lengths.get(row.uid, 0)} are there"
            )
        end = row.start + row.tokens
        size = self.capacity.block_tokens
        if end > len(table) * size:
            raise StageError(f"request {row.uid} has {len(table)} KV blocks of {size}, too few for {end} tokens")
        for index in range(row.start, end):
            self._cells[table[index // size]][index % size] = (row.uid, index)
        self._lengths[row.uid] = end
        for number, block in enumerate(table[: -(-end // size)]):
            self._check(row.uid, block, number * size, min(end, (number + 1) * size))

    def forget(self, uid: int) -> None:
        """The request's tokens are lost, its blocks are not its own any more."""
        self._tables.pop(uid, None)
        self._lengths.pop(uid, None)

    def _check(self, uid: int, block: int, start: int, end: int) -> None:
        """Both ends of a block: who writes into a foreign block writes its first token or the last one there."""
        for index in (start, end - 1):
            found = self._cells[block][index - start]
            if found != (uid, index):
                raise StageError(f"KV block {block} should hold token {index} of request {uid}, it has {found}")
