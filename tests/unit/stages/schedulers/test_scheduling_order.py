"""Who runs first, who waits, and why: the order and the contracts of both schedulers, case by case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.messages import StageRequest
from stages.schedulers.ar import ARScheduler
from stages.schedulers.base import RowProgress
from stages.schedulers.generation import GenerationScheduler
from stages.schedulers.registry import create_scheduler

NONE = frozenset()


def request(uid, inputs=(), consumers=()):
    return StageRequest(uid=uid, seed=0, inputs=inputs, consumers=consumers, outputs=())


def rows(scheduler, credits=None, held=NONE):
    output = scheduler.schedule(credits or {}, held)
    return [] if output is None else [(row.uid, row.position, row.units) for row in output.rows]


def ran(scheduler, *progress, finished=None):
    scheduler.update(tuple(RowProgress(uid=uid, units=units, finished=finished) for uid, units in progress))


@pytest.mark.parametrize("execution_type", ["llm_ar", "llm_generation"])
@given(arrivals=st.lists(st.booleans(), min_size=1, max_size=12), max_batch=st.integers(1, 3))
def test_first_ready_first_served(execution_type, arrivals, max_batch):
    """Half of the requests wait for an input that comes in reverse order: readiness counts, not arrival."""
    scheduler = create_scheduler(execution_type, max_batch)
    expected, late = [], []
    for uid, at_once in enumerate(arrivals):
        inputs = () if at_once else ("a",)
        assert scheduler.add(request(uid, inputs), {"a": "complete"}) == at_once
        (expected if at_once else late).append(uid)
    for uid in reversed(late):
        assert scheduler.extend(uid, "a", 1, True)
        expected.append(uid)
    served = []
    while step := rows(scheduler):
        served += [uid for uid, _, _ in step]
        ran(scheduler, *((uid, units) for uid, _, units in step), finished="stop")
    assert served == expected


def test_ar_keeps_places_and_admits_as_they_come_free():
    scheduler = ARScheduler(2)
    for uid in range(4):
        scheduler.add(request(uid), {})
    assert rows(scheduler) == [(0, 0, 1), (1, 0, 1)]
    ran(scheduler, (0, 1), (1, 1))
    assert rows(scheduler) == [(0, 1, 1), (1, 1, 1)]
    ran(scheduler, (0, 1), finished="stop")
    ran(scheduler, (1, 1))
    assert rows(scheduler) == [(1, 2, 1), (2, 0, 1)]


def test_ar_prefill_goes_on_until_a_unit_is_done():
    scheduler = ARScheduler(1)
    scheduler.add(request(0), {})
    phases = []
    for units in (0, 1, 1):
        (row,) = scheduler.schedule({}, NONE).rows
        phases.append(row.phase)
        ran(scheduler, (0, units))
    assert phases == ["prefill", "prefill", "decode"]


def test_ar_waits_for_text_and_never_runs_ahead_of_it():
    scheduler = ARScheduler(1)
    assert not scheduler.add(request(0, ("a",)), {"a": "incremental"})
    assert rows(scheduler) == []
    assert not scheduler.extend(0, "a", 0, False)
    assert scheduler.extend(0, "a", 1, False)
    assert rows(scheduler) == [(0, 0, 1)]
    ran(scheduler, (0, 1))
    assert rows(scheduler) == []
    assert not scheduler.extend(0, "a", 0, True)
    for position in (1, 2, 3):
        assert rows(scheduler) == [(0, position, 1)]
        ran(scheduler, (0, 1))


@pytest.mark.parametrize("lookahead", [0, 1, 3])
def test_lookahead_holds_back_what_may_be_the_last_unit(lookahead):
    scheduler = ARScheduler(1, lookahead={"a": lookahead})
    scheduler.add(request(0, ("a",)), {"a": "incremental"})
    assert scheduler.extend(0, "a", 1, False)
    assert rows(scheduler) == [(0, 0, 1)], "the first row needs one unit"
    ran(scheduler, (0, 1))
    for units in range(2, 2 + lookahead):
        scheduler.extend(0, "a", 1, False)
        assert rows(scheduler) == [], f"{units} units have come"
    scheduler.extend(0, "a", 1, False)
    assert rows(scheduler) == [(0, 1, 1)]
    ran(scheduler, (0, 1))
    assert rows(scheduler) == []
    scheduler.extend(0, "a", 0, True)
    assert rows(scheduler) == [(0, 2, 1)]


def test_ar_rows_say_which_tokens_of_the_sequence_they_compute():
    scheduler = ARScheduler(1)
    scheduler.add(request(0), {})
    scheduler.size(0, 5)
    computed = []
    for _ in range(3):
        (row,) = scheduler.schedule({}, NONE).rows
        computed.append((row.start, row.tokens))
        ran(scheduler, (0, 1))
    assert computed == [(0, 5), (5, 1), (6, 1)]


def test_a_complete_stream_is_waited_for_to_its_end():
    scheduler = ARScheduler(1)
    scheduler.add(request(0, ("a", "b")), {"a": "complete", "b": "incremental"})
    assert not scheduler.extend(0, "b", 5, False)
    assert not scheduler.extend(0, "a", 5, False)
    assert rows(scheduler) == []
    assert scheduler.extend(0, "a", 0, True)
    assert rows(scheduler) == [(0, 0, 1)]


@pytest.mark.parametrize("scheduler", [ARScheduler(4), GenerationScheduler(4, 1)])
def test_scarce_credit_goes_round(scheduler):
    for uid in range(4):
        scheduler.add(request(uid, ("a",), ("x",) if uid < 3 else ()), {"a": "complete"})
        scheduler.extend(uid, "a", 10, True)
    served = []
    for _ in range(3):
        step = [uid for uid, _, _ in rows(scheduler, {"x": 1})]
        served += step
        ran(scheduler, *((uid, 1) for uid in step))
    assert sorted(served) == [0, 1, 2, 3, 3, 3]


def test_without_credit_only_those_who_need_it_wait():
    scheduler = ARScheduler(2)
    scheduler.add(request(0, (), ("x",)), {})
    scheduler.add(request(1, (), ("y",)), {})
    assert rows(scheduler, {"x": 0}) == [(1, 0, 1)]


@pytest.mark.parametrize("scheduler", [ARScheduler(2), GenerationScheduler(2)])
def test_held_requests_are_skipped_and_come_back(scheduler):
    for uid in (0, 1):
        scheduler.add(request(uid), {})
    assert rows(scheduler, held=frozenset({0})) == [(1, 0, scheduler.__class__ is ARScheduler)]
    assert [uid for uid, _, _ in rows(scheduler)] == [0]
    assert rows(scheduler) == [], "both are in flight"


def test_generation_takes_what_is_there_up_to_its_maximum():
    scheduler = GenerationScheduler(2, max_units=4)
    scheduler.add(request(0, ("a",)), {"a": "incremental"})
    scheduler.extend(0, "a", 6, False)
    assert rows(scheduler) == [(0, 0, 4)]
    ran(scheduler, (0, 4))
    assert rows(scheduler) == [(0, 4, 2)]
    ran(scheduler, (0, 2))
    assert rows(scheduler) == []
    scheduler.extend(0, "a", 0, True)
    assert rows(scheduler) == [(0, 6, 0)], "a row without units lets the runner finish"
    ran(scheduler, (0, 0), finished="stop")
    assert len(scheduler) == 0


def test_generation_takes_turns():
    scheduler = GenerationScheduler(1, max_units=1)
    for uid in (0, 1):
        scheduler.add(request(uid, ("a",)), {"a": "complete"})
        scheduler.extend(uid, "a", 2, True)
    served = []
    for _ in range(4):
        ((uid, _, units),) = rows(scheduler)
        served.append(uid)
        ran(scheduler, (uid, units))
    assert served == [0, 1, 0, 1]


def test_generation_is_held_back_by_its_slowest_input_until_that_ends():
    scheduler = GenerationScheduler(1)
    scheduler.add(request(0, ("a", "b")), {"a": "incremental", "b": "incremental"})
    scheduler.extend(0, "a", 5, True)
    assert rows(scheduler) == []
    scheduler.extend(0, "b", 2, False)
    assert rows(scheduler) == [(0, 0, 2)]
    ran(scheduler, (0, 2))
    scheduler.extend(0, "b", 0, True)
    assert rows(scheduler) == [(0, 2, 3)]


def test_generation_does_not_offer_a_row_again_that_did_nothing():
    scheduler = GenerationScheduler(1)
    scheduler.add(request(0, ("a",)), {"a": "incremental"})
    scheduler.extend(0, "a", 5, False)
    assert rows(scheduler) == [(0, 0, 5)]
    ran(scheduler, (0, 0))
    assert rows(scheduler) == []
    scheduler.extend(0, "a", 1, False)
    assert rows(scheduler) == [(0, 0, 6)]


@pytest.mark.parametrize("scheduler", [ARScheduler(1), GenerationScheduler(1)])
def test_misuse_is_an_error(scheduler):
    scheduler.add(request(0, ("a",)), {"a": "incremental"})
    with pytest.raises(ValueError, match="already"):
        scheduler.add(request(0), {})
    with pytest.raises(KeyError):
        scheduler.add(request(1, ("b",)), {"a": "incremental"})
    with pytest.raises(KeyError):
        scheduler.extend(0, "b", 1, False)
    with pytest.raises(KeyError):
        scheduler.abort(7)
    with pytest.raises(ValueError, match="not part"):
        ran(scheduler, (0, 1))
    scheduler.extend(0, "a", 1, True)
    with pytest.raises(ValueError, match="ended"):
        scheduler.extend(0, "a", 1, False)


@pytest.mark.parametrize("make", [lambda: ARScheduler(0), lambda: GenerationScheduler(1, 0)])
def test_sizes_start_at_one(make):
    with pytest.raises(ValueError, match="at least 1"):
        make()


def test_diffusion_needs_a_runner_that_denoises():
    assert isinstance(create_scheduler("llm_ar", 1), ARScheduler)
    with pytest.raises(ValueError, match="no diffusion"):
        create_scheduler("diffusion", 1)
