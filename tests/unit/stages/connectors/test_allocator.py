"""First fit: extents never overlap, and everything that is freed can be used again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.connectors.allocator import FirstFit

SIZE = 4096


@given(st.lists(st.one_of(st.integers(0, 2000), st.just("free")), max_size=60), st.randoms(use_true_random=False))
def test_extents_are_aligned_disjoint_and_inside(actions, random):
    space = FirstFit(SIZE, range(5))
    live = {}
    for action in actions:
        if action == "free":
            if live:
                slot = random.choice(sorted(live))
                del live[slot]
                space.free(slot)
            continue
        found = space.allocate(action)
        if found is None:
            continue
        slot, start = found
        assert slot not in live
        assert start % 64 == 0
        assert start + action <= SIZE
        for other, (begin, length) in live.items():
            assert start + max(action, 1) <= begin or begin + max(length, 1) <= start, (slot, other)
        live[slot] = (start, action)
    assert space.free_slots == 5 - len(live)
    for slot in list(live):
        space.free(slot)
    assert space.allocate(SIZE) is not None


def test_no_slot_or_no_room_is_none():
    space = FirstFit(256, range(2))
    assert space.allocate(257) is None
    assert space.allocate(128) == (0, 0)
    assert space.allocate(129) is None
    assert space.allocate(128) == (1, 128)
    assert space.allocate(0) is None
    space.free(0)
    assert space.allocate(1) == (0, 0)


def test_the_lowest_gap_that_is_large_enough_is_taken():
    space = FirstFit(640, range(8))
    slots = [space.allocate(128) for _ in range(5)]
    assert [start for _, start in slots] == [0, 128, 256, 384, 512]
    for index in (1, 2, 4):
        space.free(slots[index][0])
    assert space.allocate(200)[1] == 128
    assert space.allocate(100)[1] == 512


def test_freeing_what_is_not_allocated_is_an_error():
    space = FirstFit(256, range(2))
    with pytest.raises(ValueError, match="slot 1"):
        space.free(1)
