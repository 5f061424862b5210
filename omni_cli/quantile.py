"""Quantiles of samples, for everyone who prints one."""

import math
from collections.abc import Sequence
from typing import TypeVar

Number = TypeVar("Number", int, float)


def quantile(ascending: Sequence[Number], share: float) -> Number:
    """By nearest rank: the smallest sample that at least this share of the samples (0 < share <= 1) does not exceed."""
    return ascending[max(math.ceil(share * len(ascending)), 1) - 1]
