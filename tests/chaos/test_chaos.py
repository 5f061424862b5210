"""200 rounds of chaos; `make chaos` drives 5,000, one in ten of them on stages that hold a model."""

from collections import Counter

from tests.chaos.drawn import ACTIONS
from tests.chaos.rounds import drive


def test_whatever_is_done_to_them_every_request_ends_once_and_nothing_stays():
    tally = drive(seed=6, first=0, rounds=200, full=False)
    assert tally.rounds == 200
    done = Counter[str]()
    for (what, _), count in tally.acts.items():
        done[what] += count
    assert not set(ACTIONS) - {what for what, count in done.items() if count}, "everything was done at least once"
    assert min(tally.ends[how] for how in ("finished", "failed", "cancelled", "left")) > 0
