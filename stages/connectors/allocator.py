"""Where a ring's slots lie in its data area: first fit over aligned extents. Pure arithmetic, touches no memory."""

from bisect import insort
from collections.abc import Iterable

from stages.payload import ALIGNMENT_BYTES


class FirstFit:
    """Extents of [0, size_bytes) by slot number. Not thread-safe: a ring has one producer, which has one thread."""

    def __init__(self, size_bytes: int, slots: Iterable[int]) -> None:
        self._size = size_bytes
        self._free = sorted(slots, reverse=True)
        self._extents: list[tuple[int, int, int]] = []  # (offset, end, slot), sorted

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def allocate(self, nbytes: int) -> tuple[int, int] | None:
        """A free slot and the lowest aligned offset with room for `nbytes`; None if there is no slot or no room."""
        if not self._free:
            return None
        length = max(-(-nbytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES
        start = 0
        for offset, end, _ in self._extents:
            if offset - start >= length:
                break
            start = end
        if start + nbytes > self._size:
            return None
        slot = self._free.pop()
        insort(self._extents, (start, start + length, slot))
        return slot, start

    def free(self, slot: int) -> None:
        """Raises ValueError for a slot that is not allocated."""
        for index, extent in enumerate(self._extents):
            if extent[2] == slot:
                del self._extents[index]
                self._free.append(slot)
                return
        raise ValueError(f"slot {slot} is not allocated")
