"""Medians, quantiles and aims of what was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.bench.figure import Aim, Figure
from omni_cli.quantile import quantile


def figure(*samples: float, aim: Aim | None = None) -> Figure:
    return Figure(key="k", title="t", unit="us", samples=samples, aim=aim)


@pytest.mark.parametrize(("share", "value"), [(0.01, 1), (0.25, 25), (0.5, 50), (0.501, 51), (0.99, 99), (1.0, 100)])
def test_a_quantile_is_the_sample_at_that_rank(share: float, value: int) -> None:
    assert quantile(range(1, 101), share) == value


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.floats(min_value=1e-9, max_value=1.0))
def test_at_least_that_share_of_the_samples_does_not_exceed_a_quantile(samples: list[float], share: float) -> None:
    found = figure(*samples).quantile(share)
    assert found in samples
    assert sum(sample <= found for sample in samples) / len(samples) >= share or found == max(samples)


@pytest.mark.parametrize(
    ("kind", "limit", "met"),
    [
        ("at most", 2.0, True),
        ("at most", 1.99, False),
        ("at least", 2.0, True),
        ("at least", 2.01, False),
    ],
)
def test_the_median_is_what_is_held_against_the_aim(kind: str, limit: float, met: bool) -> None:
    assert figure(1.0, 2.0, 900.0, aim=Aim(kind=kind, limit=limit)).met is met  # type: ignore[arg-type]


def test_without_an_aim_nothing_is_judged() -> None:
    assert figure(1.0).met is None
