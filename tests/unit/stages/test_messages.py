"""What follows from a request's own values."""

import pytest

from stages.messages import ImageParams


@pytest.mark.parametrize(
    ("steps", "strength", "taken"),
    [(8, None, 8), (4, 1.0, 4), (8, 0.5, 4), (7, 0.5, 4), (100, 0.07, 7), (10, 1e-20, 1), (1, 0.3, 1)],
)
def test_steps_for_which_a_picture_stands_are_not_taken(steps: int, strength: float | None, taken: int) -> None:
    assert ImageParams(width=64, height=64, steps=steps, strength=strength).taken == taken
