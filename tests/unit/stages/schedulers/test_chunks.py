"""Chunks of a stream: how large, who runs first, who shares a step, and that nobody waits for ever."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.config import StageTuning
from stages.messages import StageRequest
from stages.schedulers.base import RowProgress
from stages.schedulers.chunks import Chunking
from stages.schedulers.generation import GenerationScheduler
from stages.schedulers.registry import create_scheduler

NONE = frozenset()


def chunked(max_batch=4, first=4, then=25, most=300):
    return GenerationScheduler(max_batch, most, chunks=Chunking(first=first, then=then, most=most))


def add(scheduler, *uids, units=0, eos=False):
    for uid in uids:
        request = StageRequest(uid=uid, seed=0, inputs=("a",), consumers=(), outputs=())
        scheduler.add(request, {"a": "incremental"})
        if units or eos:
            scheduler.extend(uid, "a", units, eos)


def rows(scheduler, held=NONE):
    """Runs one step to its end: (uid, position, units) of its rows."""
    output = scheduler.schedule({}, held)
    if output is None:
        return []
    scheduler.update(tuple(RowProgress(uid=row.uid, units=row.units) for row in output.rows))
    return [(row.uid, row.position, row.units) for row in output.rows]


def test_a_message_without_units_makes_no_row_run_again():
    scheduler = chunked()
    add(scheduler, 0, units=4)
    output = scheduler.schedule({}, NONE)
    scheduler.extend(0, "a", 0, False)
    scheduler.update((RowProgress(uid=output.rows[0].uid, units=0),))
    assert rows(scheduler) == []


def test_a_row_waits_until_its_chunk_is_complete():
    scheduler = chunked()
    add(scheduler, 0, units=3)
    assert rows(scheduler) == []
    scheduler.extend(0, "a", 1, False)
    assert rows(scheduler) == [(0, 0, 4)]
    scheduler.extend(0, "a", 24, False)
    assert rows(scheduler) == []
    scheduler.extend(0, "a", 1, False)
    assert rows(scheduler) == [(0, 4, 25)]


def test_a_turn_begins_when_the_chunk_is_complete():
    scheduler = chunked(max_batch=1)
    add(scheduler, 0, units=3)
    add(scheduler, 1, units=4)
    scheduler.extend(0, "a", 1, False)
    assert [rows(scheduler), rows(scheduler)] == [[(1, 0, 4)], [(0, 0, 4)]]


@pytest.mark.parametrize("frames", [0, 1, 3, 4, 5, 28, 29, 30, 54])
def test_the_end_completes_a_chunk(frames):
    scheduler = chunked()
    add(scheduler, 0)
    for _ in range(frames):
        scheduler.extend(0, "a", 1, False)
    done = sum(units for _, _, units in rows(scheduler) + rows(scheduler))
    scheduler.extend(0, "a", 0, True)
    while step := rows(scheduler):
        ((_, position, units),) = step
        assert position == done
        done += units
    assert done == frames


@pytest.mark.parametrize(
    ("behind", "units"), [(24, 4), (25, 25), (49, 25), (50, 50), (199, 100), (200, 200), (900, 200)]
)
def test_who_is_behind_takes_more_at_once(behind, units):
    scheduler = chunked()
    add(scheduler, 0, units=behind)
    assert rows(scheduler) == [(0, 0, units)]


def test_a_complete_utterance_ends_with_its_rest():
    scheduler = chunked()
    add(scheduler, 0, units=330, eos=True)
    assert [rows(scheduler)[0][1:] for _ in range(4)] == [(0, 200), (200, 100), (300, 25), (325, 5)]


def test_rows_of_one_size_share_a_step():
    scheduler = chunked()
    add(scheduler, 0, 1, 2, units=4)
    add(scheduler, 3, units=3, eos=True)  # made for 4 as well
    add(scheduler, 4, units=0, eos=True)  # nothing to compute
    assert rows(scheduler) == [(0, 0, 4), (1, 0, 4), (2, 0, 4), (3, 0, 3)]
    assert rows(scheduler) == [(4, 0, 0), (3, 3, 0)]
    scheduler.extend(0, "a", 25, False)
    scheduler.extend(1, "a", 60, False)  # more than the others: takes what fits
    scheduler.extend(2, "a", 7, True)
    assert rows(scheduler) == [(0, 4, 25), (1, 4, 25), (2, 4, 7)]


def test_a_large_step_has_fewer_rows():
    scheduler = chunked(max_batch=16)
    add(scheduler, *range(16), units=100)
    assert [len(rows(scheduler)) for _ in range(4)] == [4, 4, 4, 4]


def test_first_chunks_go_first_but_every_second_step_is_for_the_others():
    scheduler = chunked(max_batch=1)
    add(scheduler, 0, 1, units=4)
    assert [rows(scheduler)[0][0] for _ in range(2)] == [0, 1]
    for uid in (0, 1):
        scheduler.extend(uid, "a", 25, False)
    add(scheduler, 2, 3, 4, units=4)
    assert [rows(scheduler)[0][0] for _ in range(5)] == [2, 0, 3, 1, 4]


@example(talking=2, arrivals=[0] * 8 + [1], max_batch=2, sizes=[25, 50])
@given(
    talking=st.integers(1, 6),
    arrivals=st.lists(st.integers(0, 3), max_size=40),
    max_batch=st.integers(1, 3),
    sizes=st.lists(st.integers(25, 120), min_size=1, max_size=7),
)
def test_nobody_waits_for_ever(talking, arrivals, max_batch, sizes):
    """However many new requests come, who can run does so within two steps for each who could before or at once."""
    scheduler = chunked(max_batch)
    patience = {}  # how many steps may still go by without a request that can run

    def can_run(uid, beside=0):
        patience[uid] = 2 * (len(patience) + beside) + 2

    add(scheduler, *range(talking), units=4)
    for uid in range(talking):
        can_run(uid)
    new = talking
    for arriving in arrivals:
        add(scheduler, *range(new, new + arriving), units=4)
        for uid in range(new, new + arriving):
            can_run(uid)
        new += arriving
        step = rows(scheduler)
        assert step
        for uid, _, _ in step:
            del patience[uid]
        patience = {uid: left - 1 for uid, left in patience.items()}
        assert not any(left < 1 for left in patience.values()), patience
        for uid, position, _ in step:
            if uid < talking:
                scheduler.extend(uid, "a", sizes[(uid + position) % len(sizes)], False)
                can_run(uid, beside=len(step))  # who had input left was back in the queue before it
            else:
                scheduler.abort(uid)
        if not patience:
            return


@pytest.mark.parametrize("sizes", [(0, 1, 4), (1, 0, 4), (5, 1, 4), (1, 5, 4)])
def test_sizes_are_checked(sizes):
    first, then, most = sizes
    with pytest.raises(ValueError, match="at least 1 and at most 4"):
        Chunking(first=first, then=then, most=most)


def test_chunks_follow_the_deploy_keys():
    def first_rows(**keys):
        scheduler = create_scheduler("llm_generation", 2, 300, tuning=StageTuning(**keys))
        add(scheduler, 0, units=430, eos=True)
        return [rows(scheduler)[0][2] for _ in range(3)]

    assert first_rows() == [300, 130, 0]
    assert first_rows(first_chunk_frames=2, chunk_frames=30) == [240, 120, 60]
    assert first_rows(chunk_frames=150) == [300, 130, 0]
    assert first_rows(first_chunk_frames=2, chunk_frames=30, decode="transformers") == [300, 130, 0]
