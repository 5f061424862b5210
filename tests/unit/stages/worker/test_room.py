"""What the worker does when a ring has no room: wait, hold, retry in order, or fail the one request."""

from stages.messages import REQUEST
from tests.unit.stages.worker.workbench import (
    Bench,
    emits,
    hands_over,
    leases,
    names,
    of,
    payload,
    pieces,
    says,
)


def test_a_put_without_room_holds_the_request_and_is_retried_when_a_slot_comes_back():
    bench = Bench(modes=("complete", "complete"), slots=1)
    for uid in (1, 2, 3):
        bench.submit(uid, emits("code2wav", finished="stop", data=bytes([uid])), consumers=("code2wav",))
    events = bench.run()
    assert [e.uid for e in of(events, "StageFinished")] == [1]
    assert not bench.runner.alive, "the model is done with all three"
    events = bench.reclaim(*leases(events))
    assert names(events) == ["MessagePut", "StageFinished"]
    assert events[0].uid == 2
    assert names(bench.reclaim(*leases(events))) == ["MessagePut", "StageFinished"]
    bench.assert_nothing_left()


def test_a_request_that_waits_for_room_is_not_scheduled_and_others_are():
    bench = Bench(slots=1)
    big = hands_over(bytes(70_000))
    bench.submit(1, big, big, says("x", "audio", finished="stop"), outputs=("audio",))
    bench.submit(2, says("a"), says("b"), says("c", finished="stop"), outputs=("text",))
    events = bench.run()
    assert bench.runner.steps == [(1, 2), (1, 2), (2,)]
    assert names(bench.reclaim(*leases(events))) == ["OutputProduced"]
    assert pieces(bench.run()) == [("audio", 2, "x", True, "stop")]
    bench.assert_nothing_left()


def test_pieces_of_one_request_keep_their_order_while_one_of_them_waits():
    bench = Bench(slots=1)
    bench.rings[REQUEST].put([payload(b"somebody else's")])
    bench.submit(1, {**hands_over(bytes(70_000)), "finished": "stop"}, outputs=("audio", "text"))
    assert of(bench.run(), "OutputProduced") == []
    bench.rings[REQUEST].held.clear()
    events = bench.reclaim()
    assert [(e.modality, e.eos) for e in of(events, "OutputProduced")] == [("audio", True), ("text", True)]
    assert names(events)[-1] == "StageFinished"


def test_a_stream_without_credit_is_not_scheduled():
    bench = Bench(slots=2)
    bench.submit(1, *[emits("code2wav")] * 5, consumers=("code2wav",))
    events = bench.run()
    assert len(bench.runner.steps) == 2
    bench.reclaim(leases(events)[0])
    bench.run()
    assert len(bench.runner.steps) == 3


def test_nobody_overtakes_a_put_that_waits():
    bench = Bench(modes=("complete", "complete"), slots=1)
    granted, order = [], []
    for uid in (1, 2, 3):
        bench.submit(uid, emits("code2wav", finished="stop"), consumers=("code2wav",))
        granted += leases(bench.run())
    while granted:
        events = bench.reclaim(*granted)
        order += [e.uid for e in of(events, "MessagePut")]
        granted = leases(events)
    bench.assert_nothing_left()
    assert order == [2, 3]


def test_a_payload_that_can_never_fit_fails_its_request_only_and_names_the_key():
    bench = Bench(room=10)
    bench.submit(1, emits("code2wav", data=bytes(11)), consumers=("code2wav",))
    bench.submit(2, says("a", finished="stop"), outputs=("text",))
    events = bench.run()
    (failed,) = of(events, "StageFailed")
    assert (failed.uid, failed.error.kind, failed.error.stage) == (1, "PayloadTooLarge", "talker")
    assert "deploy.code2wav.ring_bytes" in failed.error.message
    assert [e.uid for e in of(events, "StageFinished")] == [2]
    bench.assert_nothing_left()


def test_a_payload_that_turns_out_too_large_while_it_waits_fails_its_request_only():
    bench = Bench(modes=("complete", "complete"), slots=1)
    for uid in (1, 2, 3):
        bench.submit(uid, emits("code2wav", finished="stop", data=bytes(uid)), consumers=("code2wav",))
    events = bench.run()
    bench.rings["code2wav"].put = _too_large_at(2, bench.rings["code2wav"].put)
    events = bench.reclaim(*leases(events))
    assert names(events) == ["StageFailed", "MessagePut", "StageFinished"]
    assert [e.uid for e in events] == [2, 3, 3]
    bench.assert_nothing_left()


def _too_large_at(size, put):
    def refuse(pieces):
        if sum(t.data.nbytes for piece in pieces for t in piece.tensors) == size:
            raise ValueError("no")
        return put(pieces)

    return refuse
