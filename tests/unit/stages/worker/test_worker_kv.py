"""The worker between a scheduler with a KV cache and its runner."""

import pytest

from stages.errors import RequestRefused
from stages.events import StepRow
from stages.schedulers.base import KVCapacity
from tests.unit.stages.worker.workbench import Bench, Queue, names, of, says, turn

CHUNK = {"units": 0}


def bench(blocks, block_tokens=4):
    return Bench(kv=KVCapacity(blocks=blocks, block_tokens=block_tokens))


def test_a_prompt_is_prefilled_in_chunks_that_the_step_event_tells_of():
    found = bench(blocks=10)
    found.submit(1, CHUNK, says("a"), says("b", finished="stop"), outputs=("text",), prompt=11)
    events = found.run()
    assert [event.rows for event in of(events, "StepDone")] == [
        (StepRow(uid=1, phase="prefill", position=0, units=0, start=0, tokens=8),),
        (StepRow(uid=1, phase="prefill", position=0, units=1, start=8, tokens=3),),
        (StepRow(uid=1, phase="decode", position=1, units=1, start=11, tokens=1),),
    ]
    assert [event.kv_blocks for event in of(events, "StepDone")] == [3, 3, 3]
    assert [event.counters for event in of(events, "StepDone")] == [(("rows", 1),)] * 3
    assert names(events).count("Scheduled") == 1
    found.assert_nothing_left()


def test_an_encoders_step_of_its_own_is_offered_the_same_row_again():
    found = bench(blocks=10)
    found.submit(
        1, {"units": 0, "tokens": 0}, {"units": 0, "tokens": 2}, says("a", finished="stop"), outputs=("text",), prompt=5
    )
    events = found.run()
    assert [(row.start, row.tokens) for event in of(events, "StepDone") for row in event.rows] == [
        (0, 0),
        (0, 2),
        (2, 3),
    ]


@pytest.mark.parametrize("entry", [{"units": 1, "tokens": 4}, {"units": 0, "tokens": 6}])
def test_a_runner_that_miscounts_fails_its_rows(entry):
    found = bench(blocks=10)
    found.submit(1, entry, outputs=("text",), prompt=5)
    (failed,) = of(found.run(), "StageFailed")
    assert "computed other tokens" in failed.error.message
    found.assert_nothing_left()


def test_the_runner_hears_of_preemption_before_the_blocks_go_to_others():
    found = bench(blocks=4)
    long = [says("x")] * 9
    for uid in (1, 2):
        found.submit(uid, *long, says("end", finished="stop"), outputs=("text",), prompt=3)
    events = found.run()
    steps = of(events, "StepDone")
    lost = next(event for event in steps if event.preempted)
    assert lost.preempted == (2,)
    assert found.runner.preempted == [(2,)]
    again = next(row for event in steps[steps.index(lost) :] for row in event.rows if row.uid == 2)
    assert again.start == 0
    assert again.position > 0
    assert names(events).count("StageFinished") == 2
    taken = [block for rows in found.runner.rows for row in rows for block in row.blocks]
    assert set(taken) == {0, 1, 2, 3}
    found.assert_nothing_left()
    assert all(value == 0 for _, value in found.scheduler.gauges())


def test_what_cannot_fit_is_the_clients_fault_with_numbers_and_key():
    found = bench(blocks=2)
    events = found.submit(1, outputs=("text",), prompt=9)
    (failed,) = of(events, "StageFailed")
    assert (failed.error.kind, failed.error.fault) == (RequestRefused.__name__, "client")
    assert "9 tokens" in failed.error.message
    assert "deploy.stages.talker.kv_blocks" in failed.error.message
    assert "InputReady" not in names(events)
    found.submit(2, *[says("x")] * 9, outputs=("text",), prompt=4)
    (failed,) = of(found.run(), "StageFailed")
    assert "come to 9 tokens" in failed.error.message
    found.assert_nothing_left()


def test_a_process_says_when_it_is_idle_and_that_it_holds_nothing():
    found = bench(blocks=8)
    found.submit(1, says("a", finished="stop"), outputs=("text",), prompt=5)
    outbox = Queue()
    found.collect()
    with pytest.raises(Exception, match="parent is gone"):
        found.worker.run(Queue(turn()), outbox)
    events = [event for report in outbox.items for event in report.events]
    assert names(events)[-2:] == ["StageFinished", "StageIdle"]
    assert names(events).count("StageIdle") == 1
    assert dict(events[-1].gauges) == {"requests": 0, "waiting": 0, "running": 0, "kv_blocks": 0}
