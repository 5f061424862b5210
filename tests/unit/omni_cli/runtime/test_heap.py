"""The search for reference cycles is spared only while an engine is open."""

import gc

from omni_cli.runtime.heap import GROWTH, settled_heap


def test_the_heap_is_as_before_once_the_engine_is_closed() -> None:
    before = gc.get_threshold()
    with settled_heap():
        assert gc.get_threshold()[0] == GROWTH
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
