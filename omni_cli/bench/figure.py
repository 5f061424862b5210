"""One measured figure: its samples, their spread, its aim. Pure data; must not know what was measured with it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What the median should be: `at least` or `at most` the limit, in the figure's unit."""

    kind: Literal["at least", "at most"]
    limit: float

    def met(self, value: float) -> bool:
        return value >= self.limit if self.kind == "at least" else value <= self.limit

    def __str__(self) -> str:
        return f"{self.kind} {self.limit:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`key` is its name in JSON, `title` the one for people. `samples` has at least one value, in `unit`."""

    key: str
    title: str
    unit: str
    samples: tuple[float, ...]
    aim: Aim | None = None

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def verdict(self) -> str:
        """`met`, `not met`, or nothing where there is no aim. A median is judged as it is, not as it is printed."""
        if self.aim is None:
            return ""
        return "met" if self.aim.met(self.median) else "not met"

    def quantile(self, share: float) -> float:
        """The smallest sample that at least this share of the samples (0 < share <= 1) does not exceed."""
        return quantile(sorted(self.samples), share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures, and what they were taken on. `digest` is that of the plan under load."""

    digest: str
    machine: tuple[tuple[str, str], ...]
    figures: tuple[Figure, ...]


def quantile(ascending: Sequence[float], share: float) -> float:
    """By nearest rank: always one of the samples."""
    return ascending[max(math.ceil(share * len(ascending)), 1) - 1]
