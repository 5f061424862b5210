"""How long a step of a stage takes, fitted from the steps of a trace: a constant, and a price for each row, token, unit
and token of context, none of them below zero. Knows no scheduler and no clock.

Robust regression by Huber's weights, reweighted least squares: https://en.wikipedia.org/wiki/Huber_loss,
https://en.wikipedia.org/wiki/Iteratively_reweighted_least_squares.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np
import numpy.typing as npt

from omni_cli.errors import TraceError

LEAST_STEPS = 8  # of a kind; with fewer a line through them says nothing
_HUBER = 1.345  # 95 % as efficient as least squares where the noise is normal
_ROUNDS = 30
_STEPS_A_PRICE = 16  # with fewer, a price would explain noise
_LEAST_SHARE = 1e-4  # of a step's time, that the most of something costs
_DRAWN = 2000  # recorded deviations that are kept, evenly spread over the trace

FEATURES = ("a row", "a prompt token", "a unit", "a token of context")


class AnyRow(Protocol):
    """A row that a scheduler gives, or that a trace has."""

    @property
    def phase(self) -> str: ...
    @property
    def units(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def tokens(self) -> int: ...


def kind_of(rows: Sequence[AnyRow]) -> str:
    """Steps of one kind have one model: a step with any prefill in it is `prefill`."""
    phases = {row.phase for row in rows}
    return "prefill" if "prefill" in phases else min(phases)


def features(rows: Sequence[AnyRow]) -> tuple[int, ...]:
    """In the order of FEATURES. Units are those of forward calls: a language step has one a row."""
    return (
        len(rows),
        sum(row.tokens for row in rows if row.phase == "prefill"),
        sum(row.units for row in rows if row.phase == "forward"),
        sum(row.start + row.tokens for row in rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The model of one kind. `prices_ns` go with FEATURES; `error` is the median deviation, relative. `ratios` are the
    recorded times over the fitted ones. `most_rows` is the largest batch that was seen."""

    kind: str
    steps: int
    constant_ns: float
    prices_ns: tuple[float, ...]
    error: float
    most_rows: int
    ratios: tuple[float, ...]

    def mean_ns(self, values: Sequence[int]) -> float:
        return self.constant_ns + sum(price * value for price, value in zip(self.prices_ns, values, strict=True))

    def __str__(self) -> str:
        prices = [f" + {p / 1e6:.4g} ms {name}" for p, name in zip(self.prices_ns, FEATURES, strict=True) if p]
        return (
            f"{self.kind}: {self.constant_ns / 1e6:.3g} ms{''.join(prices)} "
            f"({self.steps} steps of up to {self.most_rows} rows, median error {self.error:.1%})"
        )


class StepModel:
    """Of one stage. `most_rows` is the largest batch that was asked for, `unseen` the kinds of steps that were and are
    not in the trace."""

    def __init__(self, stage: str, steps: Sequence[tuple[str, tuple[int, ...], int]]) -> None:
        """`steps` are (kind, features, ns). TraceError if there are too few of them."""
        if len(steps) < LEAST_STEPS:
            raise TraceError(
                f"stage {stage} has {len(steps)} steps in the trace, too few to tell what one takes: record a run with "
                f"{LEAST_STEPS} or more, of several batch sizes"
            )
        kinds = {kind: [step for step in steps if step[0] == kind] for kind, _, _ in steps}
        self.fits = {kind: _fit(kind, found) for kind, found in kinds.items() if len(found) >= LEAST_STEPS}
        self._any = _fit("any", steps) if len(self.fits) < len(kinds) else None
        self._kinds = frozenset(kinds)
        self.most_rows = 0
        self.unseen: set[str] = set()

    @property
    def all(self) -> tuple[Fit, ...]:
        return (*self.fits.values(), *([self._any] if self._any is not None else []))

    def fit(self, kind: str) -> Fit:
        """Its own; of a kind with too few steps that of all, of one that was never recorded another's if need be."""
        return self.fits.get(kind) or self._any or next(iter(self.fits.values()))

    def draw_ns(self, rows: Sequence[AnyRow], random: Random) -> int:
        """What a step of these rows takes, with a deviation like one of those that were recorded."""
        self.most_rows = max(self.most_rows, len(rows))
        kind = kind_of(rows)
        if kind not in self._kinds:
            self.unseen.add(kind)
        fit = self.fit(kind)
        return round(fit.mean_ns(features(rows)) * random.choice(fit.ratios))


def _fit(kind: str, steps: Sequence[tuple[str, tuple[int, ...], int]]) -> Fit:
    values = np.array([values for _, values, _ in steps], dtype=np.float64)
    times = np.array([ns for _, _, ns in steps], dtype=np.float64)
    columns = _independent(values)[: len(steps) // _STEPS_A_PRICE]
    while True:
        constant, prices = _regress(values[:, columns], times)
        shares = prices * values[:, columns].max(axis=0) / np.median(times)
        if not len(prices) or shares.min() > _LEAST_SHARE:
            break
        columns.pop(int(shares.argmin()))  # more work never takes less time: that column explains noise
    all_prices = np.zeros(values.shape[1])
    all_prices[columns] = prices
    fitted = np.maximum(constant + values @ all_prices, 1.0)
    every = -(-len(steps) // _DRAWN)
    return Fit(
        kind=kind,
        steps=len(steps),
        constant_ns=float(constant),
        prices_ns=tuple(map(float, all_prices)),
        error=float(np.median(np.abs(times - fitted) / np.maximum(times, 1.0))),
        most_rows=int(values[:, 0].max()),
        ratios=tuple(map(float, (times / fitted)[::every])),
    )


def _independent(values: npt.NDArray[np.float64]) -> list[int]:
    """The columns that tell something that the constant and those before them do not."""
    kept: list[int] = []
    for column in range(values.shape[1]):
        scale = np.abs(values[:, [*kept, column]]).max(axis=0)
        if (
            scale[-1]
            and np.linalg.matrix_rank(_with_ones(values[:, [*kept, column]] / scale), tol=1e-3) == len(kept) + 2
        ):
            kept.append(column)
    return kept


def _regress(values: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
    """Constant and slopes; the constant may not be negative either."""
    scale = np.abs(values).max(axis=0) if values.size else np.ones(values.shape[1])
    design, weights = _with_ones(values / scale), np.ones(len(times))
    found: npt.NDArray[np.float64] = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        found[:] = np.linalg.lstsq(design * root[:, None], times * root, rcond=None)[0]
        off = np.abs(times - design @ found)
        spread = 1.4826 * float(np.median(off)) + 1.0
        weights[:] = np.minimum(1.0, _HUBER * spread / np.maximum(off, 1e-9))
    if found[0] < 0:
        found = np.concatenate(([0.0], np.linalg.lstsq(design[:, 1:], times, rcond=None)[0]))
    return float(found[0]), found[1:] / scale


def _with_ones(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.concatenate((np.ones((len(values), 1)), values), axis=1)
