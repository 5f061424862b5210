"""The free list of a stage's KV blocks: who has which is the requests' own business, that nobody shares one is ours."""

from collections.abc import Iterable

from stages.schedulers.base import KVCapacity


class BlockPool:
    """Numbers of blocks that nobody has. The one that came back last goes out first: it may still be in a cache."""

    def __init__(self, capacity: KVCapacity) -> None:
        """Raises ValueError for a cache that cannot hold a token."""
        if capacity.blocks < 1 or capacity.block_tokens < 1:
            raise ValueError(f"a KV cache needs at least one block of one token, got {capacity}")
        self.capacity = capacity
        self._free = list(reversed(range(capacity.blocks)))
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return len(self._taken)

    @property
    def tokens(self) -> int:
        """How many tokens all blocks hold."""
        return self.capacity.blocks * self.capacity.block_tokens

    def needed(self, tokens: int) -> int:
        """Blocks that a sequence of so many tokens takes."""
        return -(-tokens // self.capacity.block_tokens)

    def take(self, count: int) -> tuple[int, ...]:
        """Raises ValueError if there are not so many."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks were asked for, {len(self._free)} are free")
        taken = tuple(self._free.pop() for _ in range(count))
        self._taken.update(taken)
        return taken

    def give_back(self, blocks: Iterable[int]) -> None:
        """Raises ValueError for a block that is free already."""
        for block in blocks:
            if block not in self._taken:
                raise ValueError(f"block {block} is not in use")
            self._taken.remove(block)
            self._free.append(block)
