"""In what pieces an `llm_generation` stage takes a stream: a small first chunk, then larger ones. Pure arithmetic."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What a request could run now: `units` of it, in a forward call made for `size` units.

    `begins`: they are its first. `units` is less than `size` only at the end of its input.
    """

    begins: bool
    size: int
    units: int


class Chunking:
    """Chunks of `first` units at a request's beginning and `then` units later. Who is behind takes `then` times a power
    of two at once, up to `most` units: few sizes, so that rows of one size meet, and one CUDA graph a size is enough.
    """

    def __init__(self, *, first: int, then: int, most: int) -> None:
        if not (1 <= first <= most and 1 <= then <= most):
            raise ValueError(f"chunks of {first}, then {then} units: must be at least 1 and at most {most}")
        later = [then]
        while later[-1] * 2 <= most:
            later.append(later[-1] * 2)
        self.most = most
        self.first_sizes = (first, *(size for size in later if size > first))
        self.later_sizes = tuple(later)

    def chunk(self, position: int, available: int, *, ended: bool) -> Chunk | None:
        """What a request at `position` with `available` more units may run; None if its next chunk is not complete and
        its input has not `ended`."""
        sizes = self.later_sizes if position else self.first_sizes
        fitting = [size for size in sizes if size <= available]
        if fitting:
            return Chunk(begins=not position, size=fitting[-1], units=fitting[-1])
        return Chunk(begins=not position, size=sizes[0], units=available) if ended else None


def joint_units(chunk: Chunk, leader: Chunk) -> int | None:
    """How many units of `chunk` fit a forward call made for `leader`; None if it has to wait for another one.

    A row without units needs no forward call and fits each.
    """
    if not chunk.units or (chunk.begins, chunk.size) == (leader.begins, leader.size):
        return chunk.units
    return leader.size if chunk.begins == leader.begins and chunk.units > leader.size else None
