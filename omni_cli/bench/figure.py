"""One measured figure: its samples, their spread, its aim. Pure data; must not know what was measured with it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from omni_cli.quantile import quantile


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

    def quantile(self, share: float) -> float:
        """The smallest sample that at least this share of the samples (0 < share <= 1) does not exceed."""
        return quantile(sorted(self.samples), share)

    @property
    def met(self) -> bool | None:
        """None where there is no aim. A median is judged as it is, not as it is printed."""
        return None if self.aim is None else self.aim.met(self.median)

    def document(self) -> dict[str, Any]:
        """As JSON, with every sample, in the order in which they were taken."""
        spread = {f"p{percent}": self.quantile(percent / 100) for percent in (1, 25, 75, 99)}
        judged = {"aim": None if self.aim is None else asdict(self.aim), "met": self.met}
        return {
            "title": self.title, "unit": self.unit, "median": self.median, **spread, **judged, "samples": self.samples,
        }  # fmt: skip


def by_key(titles: Iterable[tuple[str, str, str, Iterable[float]]]) -> dict[str, Figure]:
    """Figures of (key, title, unit, samples); one without samples is left out."""
    found = ((key, title, unit, tuple(samples)) for key, title, unit, samples in titles)
    return {
        key: Figure(key=key, title=title, unit=unit, samples=samples) for key, title, unit, samples in found if samples
    }


def number(value: float) -> str:
    """Three digits that mean something."""
    size = abs(value)
    if 0 < size < 0.1:
        return f"{value:.2g}"
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def spread(figure: Figure | None) -> str:
    """Its median and its 99th percentile."""
    return "-" if figure is None else f"{number(figure.median)} {number(figure.quantile(0.99))}"
