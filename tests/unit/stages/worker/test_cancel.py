"""Cancel at every moment of a request: answered once, and nothing is left."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.stages.worker.workbench import (
    Bench,
    emits,
    hands_over,
    leases,
    messages,
    names,
    of,
    pieces,
    says,
)


def test_cancel_of_an_unknown_request_is_answered():
    bench = Bench()
    assert names(bench.cancel(5)) == ["StageCancelled"]


def test_cancel_before_anything_ran():
    bench = Bench()
    bench.submit(1, inputs=("thinker",), consumers=("code2wav",))
    bench.deliver(1, 0)
    assert names(bench.cancel(1)) == ["StageCancelled"]
    assert names(bench.deliver(1, 1)) == ["LeaseReleased"], "what was on its way is given back"
    assert not bench.worker.step()
    bench.assert_nothing_left()


def test_cancel_between_steps():
    bench = Bench()
    bench.submit(1, *[says("a")] * 3, outputs=("text",))
    bench.step()
    assert names(bench.cancel(1)) == ["StageCancelled"]
    assert not bench.worker.step()
    bench.assert_nothing_left()


def test_cancel_while_a_put_waits_drops_it():
    bench = Bench(modes=("complete", "complete"), slots=1)
    for uid in (1, 2):
        bench.submit(uid, emits("code2wav", finished="stop"), consumers=("code2wav",))
    events = bench.run()
    assert names(bench.cancel(2)) == ["StageCancelled"]
    assert names(bench.reclaim(*leases(events))) == []
    bench.assert_nothing_left()


def test_cancel_after_the_end_is_answered_and_input_that_came_too_late_is_given_back():
    bench = Bench()
    bench.submit(1, says("a", finished="length"), inputs=("thinker",), outputs=("text",))
    bench.deliver(1, 0)
    assert names(bench.step())[-1] == "StageFinished"
    assert names(bench.deliver(1, 1)) == ["LeaseReleased"]
    assert names(bench.cancel(1)) == ["StageCancelled"]
    bench.assert_nothing_left()


def test_leases_of_a_cancelled_request_come_back_later():
    bench = Bench()
    bench.submit(1, emits("code2wav"), emits("code2wav"), consumers=("code2wav",))
    granted = leases(bench.step())
    bench.cancel(1)
    bench.reclaim(*granted)
    assert not bench.rings["code2wav"].held
    with pytest.raises(ValueError, match="not held"):
        bench.reclaim(*granted)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_cancel_at_any_moment_leaves_nothing(data):
    """Three requests with every kind of edge and output; at any point one of them is cancelled."""
    bench = Bench(modes=("complete", "incremental"), slots=data.draw(st.integers(1, 3)), max_batch=2)
    for uid in (1, 2, 3):
        row = {**emits("code2wav", "singer"), **hands_over(bytes(70_000))}
        bench.submit(
            uid, row, row, {**row, "finished": "stop"},
            inputs=("thinker",), consumers=("code2wav", "singer"), outputs=("audio",),
        )  # fmt: skip
    sent, alive, granted = dict.fromkeys((1, 2, 3), 0), {1, 2, 3}, []
    for _ in range(data.draw(st.integers(5, 60))):
        action = data.draw(st.sampled_from(["deliver", "step", "reclaim", "cancel"]))
        uid = data.draw(st.sampled_from([1, 2, 3]))
        if action == "deliver" and sent[uid] < 3:
            bench.deliver(uid, sent[uid], eos=sent[uid] == 2)
            sent[uid] += 1
        elif action == "step" and bench.worker.step():
            granted += leases(bench.collect())
        elif action == "reclaim" and granted:
            granted += leases(bench.reclaim(granted.pop(0)))
        elif action == "cancel":
            assert names(bench.cancel(uid)) == ["StageCancelled"]
            alive.discard(uid)
    for uid in (1, 2, 3):
        while sent[uid] < 3:
            bench.deliver(uid, sent[uid], eos=sent[uid] == 2)
            sent[uid] += 1
    while True:
        granted += leases(bench.run())
        if not granted:
            break
        granted += leases(bench.reclaim(granted.pop(0)))
    ended = {e.uid for e in of(bench.events, "StageFinished")}
    assert alive <= ended
    assert not of(bench.events, "StageFailed")
    for uid in ended:
        mine = [e for e in bench.events if getattr(e, "uid", None) == uid]
        assert [m for m in messages(mine) if m[0] == "code2wav"] == [("code2wav", 0, 3, True, True)]
        assert [(m[1], m[3]) for m in messages(mine) if m[0] == "singer"] == [(0, False), (1, False), (2, True)]
        assert [(p[1], p[3]) for p in pieces(mine)] == [(0, False), (1, False), (2, True)]
    assert not any(ring.held for ring in bench.rings.values())
    bench.assert_nothing_left()
