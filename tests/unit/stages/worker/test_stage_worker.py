"""The worker: a request's events from submission to its end, and every way to fail."""

from pickle import PickleBuffer

import pytest

from stages.errors import RequestRefused, describe
from stages.events import StepRow
from stages.messages import REQUEST
from stages.payload import Payload
from stages.runners.base import Output
from tests.unit.stages.worker.workbench import (
    Bench,
    emits,
    hands_over,
    leases,
    messages,
    names,
    of,
    payload,
    pieces,
    says,
)


def test_the_life_of_a_request_in_true_order():
    bench = Bench()
    script = (emits("code2wav"), emits("code2wav", finished="stop"))
    assert bench.submit(1, *script, inputs=("thinker",), consumers=("code2wav",)) == []
    assert names(bench.deliver(1, 0, data=b"first")) == ["MessageGot", "LeaseReleased", "InputReady"]
    assert names(bench.step()) == ["Scheduled", "StepDone", "MessagePut"]
    assert not bench.worker.step(), "one unit of input is one step"
    assert names(bench.deliver(1, 1, eos=True, data=None)) == ["MessageGot"]
    events = bench.step()
    assert names(events) == ["StepDone", "MessagePut", "StageFinished"]
    assert (events[-1].reason, events[-1].units) == ("stop", 2)
    assert messages(bench.events) == [("code2wav", 0, 1, False, True), ("code2wav", 1, 1, True, True)]
    assert of(bench.events, "StepDone")[0].rows == (StepRow(uid=1, phase="prefill", position=0, units=1, tokens=1),)
    assert [e.index for e in of(bench.events, "StepDone")] == [0, 1]
    assert bench.runner.fed == [(1, "thinker", b"first", False), (1, "thinker", b"", True)]
    bench.assert_nothing_left()


def test_a_first_stage_is_ready_at_once():
    bench = Bench()
    assert names(bench.submit(1, says("a", finished="stop"), outputs=("text",))) == ["InputReady"]
    assert pieces(bench.step()) == [("text", 0, "a", True, "stop")]


def test_media_wait_for_their_end():
    bench = Bench()
    bench.submit(1, says("a", finished="stop"), inputs=(REQUEST,), outputs=("text",))
    assert names(bench.deliver(1, 0, eos=True, producer=REQUEST)) == ["MessageGot", "LeaseReleased", "InputReady"]


def test_rows_share_a_step_and_report_apart():
    bench = Bench()
    bench.submit(1, says("a"), says("b", finished="stop"), outputs=("text",))
    bench.submit(2, says("c", finished="length"), outputs=("text",))
    bench.run()
    assert bench.runner.steps == [(1, 2), (1,)]
    assert [(e.uid, e.reason) for e in of(bench.events, "StageFinished")] == [(2, "length"), (1, "stop")]
    assert [e.uid for e in of(bench.events, "Scheduled")] == [1, 2]
    bench.assert_nothing_left()


def test_an_output_ends_even_if_the_last_row_has_nothing_for_it():
    bench = Bench()
    bench.submit(1, says("a"), {"finished": "stop"}, outputs=("text", "audio"))
    bench.run()
    assert pieces(bench.events) == [
        ("text", 0, "a", False, None),
        ("text", 1, "", True, "stop"),
        ("audio", 0, "", True, "stop"),
    ]


def test_small_media_travel_within_the_report_and_large_ones_through_the_ring():
    bench = Bench()
    bench.submit(1, hands_over(bytes(65536)), hands_over(bytes(65537), finished="stop"), outputs=("audio",))
    bench.run()
    small, large = of(bench.events, "OutputProduced")
    assert (len(small.ref.inline), small.lease, large.ref.inline) == (65536, None, None)
    assert large.lease.owner == "talker.0"
    assert list(bench.rings[REQUEST].held) == [large.lease.number]
    bench.reclaim(large.lease)
    assert not bench.rings[REQUEST].held


def test_what_fits_a_report_only_without_its_alignment_goes_through_the_ring():
    bench = Bench()
    tensors = (*payload(bytes(65535), "audio").tensors, *payload(b"x", "rate").tensors)
    output = Output(modality="audio", units=1, payload=Payload(tensors=tensors))
    bench.submit(1, {"outputs": (output,), "finished": "stop"}, outputs=("audio",))
    (piece,) = of(bench.run(), "OutputProduced")
    assert piece.lease is not None


def test_a_complete_edge_gets_one_message_with_everything():
    bench = Bench(modes=("complete", "incremental"))
    row = emits("code2wav", "singer")
    bench.submit(1, row, row, {**row, "finished": "stop"}, consumers=("code2wav", "singer"))
    for _ in range(3):
        bench.reclaim(*[lease for lease in leases(bench.step()) if lease.number in bench.rings["singer"].held])
    assert messages(bench.events) == [
        ("singer", 0, 1, False, True),
        ("singer", 1, 1, False, True),
        ("code2wav", 0, 3, True, True),
        ("singer", 2, 1, True, True),
    ]
    assert b"xxx" in bench.rings["code2wav"].held.values()


def test_a_stream_without_payload_has_its_end_all_the_same():
    bench = Bench(modes=("complete", "incremental"))
    bench.submit(1, {"units": 0, "finished": "empty"}, consumers=("code2wav", "singer"))
    assert messages(bench.step()) == [("code2wav", 0, 0, True, False), ("singer", 0, 0, True, False)]
    assert bench.events[-1].reason == "empty"
    bench.assert_nothing_left()


class OutOfMemoryError(RuntimeError):
    """By its name, as torch's: of the device."""


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), MemoryError("no memory"), OutOfMemoryError("CUDA out of memory"), OSError("disk")]
)
def test_a_runner_that_raises_fails_the_rows_of_that_step_and_others_go_on(error):
    bench = Bench(max_batch=2)
    bench.submit(1, says("a"), error, outputs=("text",))
    bench.submit(2, says("b"), says("c"), outputs=("text",))
    bench.submit(3, says("d", finished="stop"), outputs=("text",))
    bench.run()
    failed = of(bench.events, "StageFailed")
    assert [(e.uid, e.error.kind, e.error.fault) for e in failed] == [
        (u, type(error).__name__, "server") for u in (1, 2)
    ]
    assert str(error) in failed[0].error.message
    assert ("deploy.stages.talker.max_batch" in failed[0].error.message) == ("memory" in str(error))
    assert "Traceback" in failed[0].error.trace
    assert [row.units for row in of(bench.events, "StepDone")[1].rows] == [0, 0]
    assert [e.uid for e in of(bench.events, "StageFinished")] == [3]
    bench.assert_nothing_left()


def test_a_row_with_an_error_fails_alone():
    bench = Bench()
    bench.submit(1, {"units": 0, "error": describe(ValueError("bad row"), "talker")}, outputs=("text",))
    bench.submit(2, says("b", finished="stop"), outputs=("text",))
    assert names(bench.step()) == [
        "Scheduled", "Scheduled", "StepDone", "StageFailed", "OutputProduced", "StageFinished",
    ]  # fmt: skip
    bench.assert_nothing_left()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (emits("singer"), "singer"),
        (says("a", "image"), "image"),
        ({"units": 2}, "more units"),
        ({"uid": 77}, "answered"),
    ],
)
def test_a_runner_that_does_what_nobody_asked_for_fails_the_request(script, words):
    bench = Bench()
    bench.submit(1, script, consumers=("code2wav",), outputs=("text",))
    (failed,) = of(bench.step(), "StageFailed")
    assert words in failed.error.message
    bench.assert_nothing_left()


def test_a_refused_request_is_a_client_fault_without_traceback():
    bench = Bench()
    bench.runner.refuse[1] = RequestRefused("unknown speaker 'x'")
    (failed,) = bench.submit(1, outputs=("audio",))
    assert (failed.error.fault, failed.error.message, failed.error.trace) == ("client", "unknown speaker 'x'", "")
    assert names(bench.deliver(1, 0)) == ["LeaseReleased"]
    bench.assert_nothing_left()


@pytest.mark.parametrize("wrong", [{"inputs": ("singer",)}, {"consumers": ("thinker",)}])
def test_a_request_on_edges_that_do_not_exist_fails(wrong):
    bench = Bench()
    (failed,) = bench.submit(1, **wrong)
    assert next(iter(wrong.values()))[0] in failed.error.message
    bench.assert_nothing_left()


def test_an_input_that_cannot_be_read_is_released_and_fails_the_request():
    bench = Bench()
    bench.submit(1, inputs=("thinker",))
    bench.runner.feed_error[1] = ValueError("strange payload")
    assert names(bench.deliver(1, 0)) == ["LeaseReleased", "StageFailed"]
    assert names(bench.deliver(1, 1)) == ["LeaseReleased"]
    bench.assert_nothing_left()


@pytest.mark.parametrize("seqs", [(1,), (0, 0), (0, 2)])
def test_a_message_out_of_order_fails_the_request_and_is_released(seqs):
    bench = Bench()
    bench.submit(1, inputs=("thinker",))
    for seq in seqs:
        events = bench.deliver(1, seq)
    assert names(events) == ["LeaseReleased", "StageFailed"]
    assert (events[1].error.kind, "thinker" in events[1].error.message) == ("StreamBroken", True)
    bench.assert_nothing_left()


def test_a_message_after_the_end_or_from_a_stranger_fails_the_request():
    bench = Bench()
    bench.submit(1, inputs=("thinker",))
    bench.deliver(1, 0, eos=True)
    assert names(bench.deliver(1, 1)) == ["LeaseReleased", "StageFailed"]
    bench.submit(2, inputs=("thinker",))
    assert names(bench.deliver(2, 0, producer=REQUEST)) == ["LeaseReleased", "StageFailed"]
    bench.assert_nothing_left()


def test_a_view_that_the_runner_keeps_is_dead_after_feed():
    bench = Bench()
    bench.submit(1, inputs=("thinker",))
    kept = []
    bench.runner.feed = lambda uid, producer, payload, eos: kept.append(payload.tensors[0].data)
    assert "StageFailed" not in names(bench.deliver(1, 0))
    with pytest.raises(ValueError, match="released"):
        bytes(kept[0])
    bench.runner.feed = lambda uid, producer, payload, eos: kept.append(PickleBuffer(payload.tensors[0].data))
    events = bench.deliver(1, 1)
    assert names(events) == ["LeaseReleased", "StageFailed"]
    assert "'a'" in events[1].error.message


def test_a_runner_that_cannot_let_go_does_not_end_the_loop(caplog):
    bench = Bench()
    bench.submit(1, says("a", finished="stop"), outputs=("text",))

    def end(uid):
        raise RuntimeError("stuck")

    bench.runner.end = end
    assert names(bench.step())[-1] == "StageFinished"
    assert "could not drop request 1" in caplog.text
