"""The order of denoising steps: who joins, who leads, who waits, and that everybody gets exactly what was asked for."""

from collections import Counter
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from stages.errors import RequestRefused
from stages.messages import StageRequest
from stages.schedulers.base import Denoising, RowProgress
from stages.schedulers.diffusion import DECODES, LOOK_AHEAD, PASSES, DiffusionScheduler

SMALL, WIDE, TALL = (64, 64), (128, 64), (64, 128)


class Stage:
    """A scheduler and the results that a runner would give; `log` has (kind, uids) of every step."""

    def __init__(self, max_batch=8, **options):
        self.asks: dict[int, Denoising] = {}
        self.scheduler = DiffusionScheduler(max_batch, self.asks.__getitem__, **options)
        self.log: list[tuple[str, tuple[int, ...]]] = []
        self.decodes = options.get("decodes", True)

    def add(self, uid, steps=3, shape=SMALL, tokens=16, **others):
        self.asks[uid] = Denoising(steps=steps, tokens=tokens, shape=shape, **others)
        request = StageRequest(uid=uid, seed=0, inputs=(), consumers=(), outputs=("image",))
        assert self.scheduler.add(request, {})
        self.scheduler.size(uid, 1)

    def step(self, held=frozenset(), failed=()):
        output = self.scheduler.schedule({}, frozenset(held))
        if output is None:
            return None
        (kind,) = {row.phase for row in output.rows}
        uids = tuple(row.uid for row in output.rows)
        self.log.append((kind, uids))
        self.scheduler.update(tuple(self.result(row, row.uid in failed) for row in output.rows))
        return kind, uids

    def result(self, row, failed):
        last = (row.phase == "decode" and row.position == self.asks[row.uid].steps) or (
            not self.decodes and row.position + 1 == self.asks[row.uid].steps
        )
        return RowProgress(
            uid=row.uid, units=row.units, finished="stop" if last and not failed else None, failed=failed
        )

    def run(self, limit=10_000):
        for _ in range(limit):
            if self.step() is None:
                return self
        raise AssertionError(f"not done after {limit} steps")

    def denoised(self):
        return [uids for kind, uids in self.log if kind == "denoise"]

    def counts(self):
        return Counter(uid for uids in self.denoised() for uid in uids)

    def assert_empty(self):
        assert set(dict(self.scheduler.gauges()).values()) == {0}


def test_each_gets_the_steps_it_asked_for_whoever_is_beside_it():
    stage = Stage()
    for uid, steps in enumerate((1, 4, 7, 20)):
        stage.add(uid, steps=steps, tokens=16 * (1 + uid % 2))
        stage.step()
    assert stage.run().counts() == {0: 1, 1: 4, 2: 7, 3: 20}
    stage.assert_empty()


def test_a_request_joins_a_running_batch_at_the_next_step_and_leaves_when_it_is_done():
    stage = Stage()
    stage.add(0, steps=9)
    stage.step(), stage.step()
    stage.add(1, steps=2)
    assert stage.step() == ("encode", (1,))
    assert [stage.step() for _ in range(2)] == [("denoise", (0, 1))] * 2
    assert stage.step() == ("decode", (1,))
    assert stage.step() == ("denoise", (0,))
    assert stage.run().counts() == {0: 9, 1: 2}


def test_encoding_and_decoding_neither_stall_those_who_denoise_nor_starve():
    stage = Stage(max_batch=4)
    stage.add(0, steps=40)
    for uid in range(1, 20):
        stage.add(uid, steps=1)
    stage.run()
    before_0_ends = stage.log[: max(i for i, (kind, uids) in enumerate(stage.log) if kind == "denoise" and 0 in uids)]
    between = Counter(kind for kind, _ in before_0_ends)
    assert 0 in stage.denoised()[0]
    assert between["encode"] <= between["denoise"] + 1
    assert between["decode"] <= between["denoise"]
    assert sum(kind == "decode" for kind, _ in before_0_ends) == 19  # nobody waited for the long one's end
    assert all(len(uids) == 1 for kind, uids in before_0_ends if kind == "decode")


def test_of_those_with_pictures_one_is_encoded_between_two_steps_and_all_where_nobody_waits():
    stage = Stage()
    stage.add(0, steps=5, pictures=1), stage.add(1, steps=5, pictures=2)
    assert stage.step() == ("encode", (0, 1))
    stage.step()
    for uid, pictures in ((2, 1), (3, 0), (4, 2), (5, 0)):
        stage.add(uid, pictures=pictures)
    assert stage.step() == ("encode", (2, 3, 5))
    assert stage.step() == ("denoise", (0, 1, 2, 3, 5))
    assert stage.step() == ("encode", (4,))
    assert stage.run().counts() == {0: 5, 1: 5, **dict.fromkeys(range(2, 6), 3)}


def test_where_nobody_denoises_a_few_of_one_shape_are_decoded_together():
    stage = Stage(step_tokens=100)
    for uid, shape in enumerate((SMALL, SMALL, WIDE, SMALL, SMALL, SMALL)):
        stage.add(uid, steps=1, shape=shape)
    stage.run()
    decoded = [uids for kind, uids in stage.log if kind == "decode"]
    assert max(map(len, decoded)) == DECODES
    assert sorted(uid for uids in decoded for uid in uids) == list(range(6))
    assert (2,) in decoded
    stage = Stage(step_tokens=32)
    for uid in range(4):
        stage.add(uid, steps=1)
    assert max(len(uids) for kind, uids in stage.run().log if kind == "decode") == 2


def test_two_shapes_take_turns_each_with_all_of_its_kind():
    stage = Stage()
    for uid, shape in enumerate((SMALL, WIDE, SMALL, SMALL)):
        stage.add(uid, shape=shape, steps=4)
    stage.run()
    assert stage.denoised() == [(0, 2, 3), (1,)] * 4


def test_guidance_and_steps_are_no_reason_to_be_apart():
    stage = Stage()
    stage.add(0, steps=1, tokens=16)
    stage.add(1, steps=5, tokens=32)
    stage.run()
    assert stage.denoised()[0] == (0, 1)


def test_the_budget_bounds_a_step_and_an_odd_request_is_passed_only_for_a_while():
    stage = Stage(max_batch=4, step_tokens=48)
    for uid in range(3):
        stage.add(uid, steps=2 + uid)
    stage.add(3, tokens=48, steps=2)  # finds no room before the others have left
    for uid in range(4, 40):
        stage.add(uid, steps=2)
    stage.run()
    assert max(sum(stage.asks[uid].tokens for uid in uids) for uids in stage.denoised()) == 48
    first = [uids[0] for uids in stage.denoised() if 3 in uids]
    assert first == [3, 3]
    before = {uid for uids in stage.denoised()[: stage.denoised().index((3,))] for uid in uids}
    assert len(before) == 3 + PASSES


def test_a_place_is_given_away_past_a_bounded_part_of_the_queue():
    stage = Stage(max_batch=4, step_tokens=16)
    for uid in range(LOOK_AHEAD + 1):
        stage.add(uid, steps=3)
    stage.add(99, shape=WIDE)  # behind LOOK_AHEAD requests that find no room
    stage.step()
    assert stage.log == [("encode", (0,))]
    stage.scheduler.abort(5)
    stage.step(), stage.step()
    assert ("encode", (99,)) in stage.log


def test_what_is_more_than_the_budget_runs_alone():
    stage = Stage(step_tokens=32)
    stage.add(0, tokens=100, steps=2)
    stage.add(1, tokens=100, steps=2)
    assert stage.run().denoised() == [(0,), (0,), (1,), (1,)]


def test_a_stage_that_is_fed_embeddings_and_feeds_latents_only_denoises():
    stage = Stage(encodes=False, decodes=False)
    stage.add(0, steps=2)
    stage.add(1, steps=3)
    stage.run()
    assert stage.log == [("denoise", (0, 1)), ("denoise", (0, 1)), ("denoise", (1,))]
    stage.assert_empty()


@pytest.mark.parametrize("steps_before", range(7))
def test_a_cancel_frees_everything_at_once(steps_before):
    stage = Stage()
    stage.add(0, steps=4)
    for _ in range(steps_before - (steps_before == 6)):
        stage.step()
    stage.scheduler.abort(0)
    stage.assert_empty()
    assert stage.step() is None
    assert 0 not in stage.scheduler


def test_r21_a_cancel_between_two_steps_and_one_in_the_queue_touch_nobody_else():
    stage = Stage(max_batch=1)
    for uid, steps in ((0, 50), (1, 5), (2, 5)):
        stage.add(uid, steps=steps)
    for _ in range(10):
        stage.step()
    stage.scheduler.abort(0)
    stage.scheduler.abort(2)
    done = len(stage.log)
    stage.run()
    assert stage.log[done][1] == (1,), "the next step is the next request's"
    assert {uid for _, uids in stage.log[done:] for uid in uids} == {1}
    assert stage.counts()[1] == 5
    stage.add(3, steps=2)
    assert stage.run().counts()[3] == 2
    stage.assert_empty()


def test_previews_are_decoded_between_steps_and_cost_nobody_a_step():
    stage = Stage()
    stage.add(0, steps=5, preview_every=2)
    stage.add(1, steps=5)
    stage.run()
    assert Counter(uid for kind, uids in stage.log if kind == "decode" for uid in uids) == {0: 3, 1: 1}
    assert stage.counts() == {0: 5, 1: 5}
    assert set(stage.denoised()[2]) == {0, 1}
    stage = Stage(decodes=False)
    stage.add(0, steps=3, preview_every=1)
    assert stage.run().counts() == {0: 3}


def test_one_that_fails_leaves_the_others():
    stage = Stage()
    for uid in range(3):
        stage.add(uid, steps=3)
    stage.step()
    stage.step(failed=(1,))
    assert stage.run().counts() == {0: 3, 1: 1, 2: 3}


def test_a_request_whose_output_waits_for_room_is_not_run():
    stage = Stage()
    stage.add(0), stage.add(1)
    stage.step()
    assert stage.step(held={0}) == ("denoise", (1,))


def test_nothing_to_denoise_is_refused():
    stage = Stage()
    with pytest.raises(RequestRefused, match="0 steps"):
        stage.add(0, steps=0)


def test_a_runner_that_does_not_end_a_request_is_an_error():
    stage = Stage()
    stage.add(0, steps=1)
    stage.step(), stage.step()
    stage.scheduler.schedule({}, frozenset())
    with pytest.raises(ValueError, match="has not ended"):
        stage.scheduler.update((RowProgress(uid=0, units=0),))


REQUEST = st.tuples(
    st.integers(0, 12),  # steps of the stage before it comes
    st.integers(1, 9),  # its own steps
    st.sampled_from((SMALL, WIDE, TALL)),
    st.sampled_from((16, 32)),
    st.none() | st.integers(1, 12),  # steps of the stage until it is cancelled
    st.sampled_from((0, 1, 2)),  # steps from preview to preview
    st.sampled_from((0, 2)),  # pictures
)


@settings(max_examples=60, deadline=None)
@given(st.lists(REQUEST, min_size=1, max_size=24), st.integers(1, 6), st.sampled_from((16, 48, None)))
def test_whatever_comes_and_goes_all_get_their_steps_and_nobody_starves(requests, max_batch, budget):
    stage = Stage(max_batch=max_batch, step_tokens=budget)
    cancelled, at, encoded = set(), 0, {}
    while True:
        for uid, (comes, steps, shape, tokens, leaves, every, pictures) in enumerate(requests):
            if comes == at:
                stage.add(uid, steps=steps, shape=shape, tokens=tokens, preview_every=every, pictures=pictures)
            if leaves is not None and at == comes + leaves and uid in stage.scheduler:
                stage.scheduler.abort(uid)
                cancelled.add(uid)
        done = stage.step()
        if done is None and at > 24:
            break
        if done is not None and done[0] == "encode":
            encoded.update(dict.fromkeys(done[1], len(stage.denoised())))
        at += 1
        assert at < 3000
    counts = stage.counts()
    for uid, (_, steps, *_) in enumerate(requests):
        assert counts[uid] <= steps if uid in cancelled else counts[uid] == steps
    denoised = stage.denoised()
    for uids in denoised:
        assert len({stage.asks[uid].shape for uid in uids}) == 1
        assert len(uids) <= max_batch
        assert budget is None or len(uids) == 1 or sum(stage.asks[uid].tokens for uid in uids) <= budget
    for uid, since in encoded.items():  # of three shapes, at most two go first; then every third step is its own
        own = [since - 1, *(index for index, uids in enumerate(denoised) if uid in uids)]
        assert stage.asks[uid].preview_every or all(later - earlier <= 3 for earlier, later in pairwise(own)), uid
    stage.assert_empty()
