"""The AR scheduler with a KV cache, case by case: chunks, budget, blocks, who is preempted, who waits and why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.config import StageTuning
from stages.errors import RequestRefused
from stages.messages import StageRequest
from stages.schedulers.ar import ARScheduler
from stages.schedulers.base import KV_BLOCKS, KVCapacity, RowProgress
from stages.schedulers.blocks import BlockPool
from stages.schedulers.registry import create_scheduler

NONE = frozenset()


def scheduler(*prompts, max_batch=4, step_tokens=8, blocks=100, block_tokens=4):
    """Requests 0, 1, ... with prompts of these lengths, all ready."""
    found = ARScheduler(
        max_batch, step_tokens=step_tokens, kv=KVCapacity(blocks=blocks, block_tokens=block_tokens), stage="thinker"
    )
    for uid, tokens in enumerate(prompts):
        add(found, uid, tokens)
    return found


def add(found, uid, tokens, consumers=()):
    assert found.add(StageRequest(uid=uid, seed=0, inputs=(), consumers=consumers, outputs=()), {})
    found.size(uid, tokens)


def step(found, *, finish=(), credits=None, held=NONE):
    """Schedules and does it all; (uid, start, tokens, units) of each row. `finish` end with this step."""
    output = found.schedule(credits or {}, held)
    if output is None:
        return []
    found.update(
        tuple(
            RowProgress(uid=row.uid, units=row.units, finished="stop" if row.uid in finish else None)
            for row in output.rows
        )
    )
    return [(row.uid, row.start, row.tokens, row.units) for row in output.rows]


def used(found):
    return dict(found.gauges())[KV_BLOCKS]


def test_a_long_prompt_is_prefilled_in_chunks_while_others_decode():
    found = scheduler(3)
    assert step(found) == [(0, 0, 3, 1)]
    add(found, 1, 15)
    assert step(found) == [(0, 3, 1, 1), (1, 0, 7, 0)]
    assert step(found) == [(1, 7, 7, 0), (0, 4, 1, 1)]
    assert step(found) == [(1, 14, 1, 1), (0, 5, 1, 1)]
    assert step(found) == [(1, 15, 1, 1), (0, 6, 1, 1)]


def test_prefills_take_the_budget_in_turn_and_what_is_left_goes_to_the_next():
    found = scheduler(10, 5, 2)
    assert step(found) == [(0, 0, 8, 0)]
    assert step(found) == [(0, 8, 2, 1), (1, 0, 5, 1), (2, 0, 1, 0)]
    assert step(found) == [(2, 1, 1, 1), (0, 10, 1, 1), (1, 5, 1, 1)]


@given(prompts=st.lists(st.integers(1, 30), min_size=1, max_size=10), max_batch=st.integers(1, 4))
def test_a_full_batch_of_decodes_never_stops_a_prefill(prompts, max_batch):
    found = scheduler(*prompts, max_batch=max_batch, step_tokens=max_batch)
    first, steps = [], 0
    done = dict.fromkeys(range(len(prompts)), 0)
    while done:
        finish = [uid for uid, units in done.items() if units >= 3]
        rows = step(found, finish=finish)
        assert rows
        assert sum(tokens for _, _, tokens, _ in rows) <= max_batch
        first += [uid for uid, start, _, _ in rows if start == 0]
        for uid, _, _, units in rows:
            done[uid] += units
            if uid in finish:
                del done[uid]
        steps += 1
    assert first == sorted(first), "places are given in turn"
    assert steps <= sum(prompts) + 4 * len(prompts)


def test_blocks_for_the_whole_prompt_come_with_the_first_chunk_and_one_more_when_a_block_is_full():
    found = scheduler(15, blocks=5)
    rows = []
    for _ in range(5):
        (row,) = found.schedule({}, NONE).rows
        rows.append((row.start, row.tokens, len(row.blocks)))
        found.update((RowProgress(uid=0, units=row.units),))
    assert rows == [(0, 8, 4), (8, 7, 0), (15, 1, 0), (16, 1, 1), (17, 1, 0)]
    found.abort(0)
    assert used(found) == 0


def test_who_finds_no_room_waits_and_nobody_overtakes():
    found = scheduler(8, 12, 1, blocks=4, step_tokens=100)
    assert step(found) == [(0, 0, 8, 1)]
    assert step(found) == [(0, 8, 1, 1)], "1 needs 3 blocks of 2; 2 would fit, but comes after it"
    step(found, finish=[0])
    assert step(found) == [(1, 0, 12, 1)]
    assert used(found) == 3


def test_preemption_takes_from_the_latest_and_gives_back_its_turn():
    found = scheduler(3, 3, 3, blocks=6, step_tokens=100, block_tokens=4)
    assert [row[:3] for row in step(found)] == [(0, 0, 3), (1, 0, 3), (2, 0, 3)]
    assert used(found) == 3
    step(found)  # token 3: the blocks are full
    step(found)  # token 4: a second block for each
    assert used(found) == 6
    for _ in range(3):
        step(found)
    add(found, 3, 1)
    output = found.schedule({}, NONE)
    assert output.preempted == (2,)
    assert [(row.uid, row.start, len(row.blocks)) for row in output.rows] == [(0, 8, 1), (1, 8, 1)]
    found.update(tuple(RowProgress(uid=row.uid, units=1) for row in output.rows))
    assert step(found) == [(0, 9, 1, 1), (1, 9, 1, 1)], "2 waits for 3 blocks, and 3 waits behind it"
    step(found, finish=[0, 1])
    rows = step(found)
    assert rows[0] == (2, 0, 9, 1), "prompt 3 and the 6 that it had generated"
    assert rows[1] == (3, 0, 1, 1)
    assert step(found)[0] == (2, 9, 1, 1)


def test_who_outgrows_the_whole_cache_is_refused_with_the_numbers():
    found = scheduler(7, blocks=2, block_tokens=4)
    step(found)
    step(found)
    output = found.schedule({}, NONE)
    assert output.rows == ()
    (refusal,) = output.refused
    assert refusal.uid == 0
    assert "come to 9 tokens" in refusal.message
    assert "stage 'thinker' holds 8 (2 blocks of 4)" in refusal.message
    found.abort(0)
    assert used(found) == 0


def test_a_prompt_that_can_never_fit_is_refused_at_once():
    found = scheduler(blocks=2)
    found.add(StageRequest(uid=0, seed=0, inputs=(), consumers=(), outputs=()), {})
    with pytest.raises(RequestRefused, match=r"9 tokens, but .* holds 8 .*deploy\.stages\.thinker\.kv_blocks"):
        found.size(0, 9)


def test_only_the_chunk_that_hands_something_on_needs_credit():
    found = scheduler(blocks=10)
    add(found, 0, 12, consumers=("x",))
    assert step(found, credits={"x": 0}) == [(0, 0, 8, 0)]
    assert step(found, credits={"x": 0}) == []
    assert step(found, credits={"x": 1}) == [(0, 8, 4, 1)]


def test_scarce_credit_goes_round_among_decodes_and_prefills():
    found = scheduler(step_tokens=100)
    for uid in range(3):
        add(found, uid, 5, consumers=("x",))
    served = [row[0] for _ in range(6) for row in step(found, credits={"x": 1})]
    assert served == [0, 1, 2, 0, 1, 2]


def test_the_registry_passes_capacity_and_budget_on():
    kv = KVCapacity(blocks=2, block_tokens=4)
    found = create_scheduler("llm_ar", 2, tuning=StageTuning(step_tokens=5), kv=kv, stage="talker")
    add(found, 0, 8)
    assert step(found) == [(0, 0, 5, 0)]
    with pytest.raises(ValueError, match="step_tokens=1 is less than max_batch=2"):
        create_scheduler("llm_ar", 2, tuning=StageTuning(step_tokens=1), kv=kv)


def test_a_pool_gives_out_each_block_once():
    pool = BlockPool(KVCapacity(blocks=3, block_tokens=2))
    first = pool.take(2)
    assert {*first, *pool.take(1)} == {0, 1, 2}
    with pytest.raises(ValueError, match="1 blocks were asked for, 0 are free"):
        pool.take(1)
    pool.give_back(first)
    with pytest.raises(ValueError, match="not in use"):
        pool.give_back(first[:1])
    assert (pool.free, pool.used, pool.needed(1), pool.needed(2), pool.needed(3)) == (2, 1, 1, 1, 2)
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(KVCapacity(blocks=0, block_tokens=16))
