"""The worker's loop over its two pipes."""

from collections import deque

import pytest

from stages.messages import StageRequest, Submit
from stages.worker.loop import ParentGone
from tests.unit.stages.worker.workbench import (
    STOP,
    Bench,
    Queue,
    names,
    says,
    turn,
)


def test_the_loop_reports_ready_first_works_off_its_turns_and_stops():
    bench = Bench()
    bench.runner.scripts[1] = deque([says("a"), says("b", finished="stop")])
    request = StageRequest(uid=1, seed=0, inputs=(), consumers=(), outputs=("text",))
    inbox, outbox = Queue(turn(Submit(request=request))), Queue()
    bench.worker.ready(7, (("device", "cpu"),))

    real = outbox.put

    def put(report):
        real(report)
        if "StageFinished" in names(report.events):
            inbox.put(STOP)

    outbox.put = put
    bench.worker.run(inbox, outbox)
    reports = list(outbox.items)
    assert [report.seq for report in reports] == [0, 1, 2]
    assert {report.process for report in reports} == {"talker.0"}
    assert [names(report.events) for report in reports] == [
        ["ProcessReady"],
        ["InputReady", "Scheduled", "StepDone", "OutputProduced"],
        ["StepDone", "OutputProduced", "StageFinished", "StageIdle"],
    ]
    assert reports[0].events[0].facts == (("device", "cpu"),)


def test_the_loop_drains_its_inbox_before_each_step():
    bench = Bench()
    requests = [StageRequest(uid=uid, seed=0, inputs=(), consumers=(), outputs=("text",)) for uid in (1, 2)]
    for uid in (1, 2):
        bench.runner.scripts[uid] = deque([says("a", finished="stop")])
    inbox = Queue(*(turn(Submit(request=request)) for request in requests), STOP)
    bench.worker.run(inbox, Queue())
    assert bench.runner.steps == [], "stop came with them"
    bench = Bench()
    for uid in (1, 2):
        bench.runner.scripts[uid] = deque([says("a", finished="stop")])
    with pytest.raises(ParentGone):
        bench.worker.run(Queue(*(turn(Submit(request=request)) for request in requests)), Queue())
    assert bench.runner.steps == [(1, 2)], "who arrives together is taken together"


def test_a_parent_that_is_gone_ends_the_loop():
    with pytest.raises(ParentGone):
        Bench().worker.run(Queue(), Queue())
    bench, outbox = Bench(), Queue()

    def put(report):
        raise BrokenPipeError

    outbox.put = put
    bench.worker.ready(1, ())
    with pytest.raises(ParentGone):
        bench.worker.run(Queue(STOP), outbox)


def test_a_breach_of_the_protocol_is_not_swallowed():
    bench = Bench()
    bench.submit(1, inputs=("thinker",))
    with pytest.raises(ValueError, match="twice"):
        bench.submit(1, inputs=("thinker",))


def test_stopping_with_requests_in_flight_is_said(caplog):
    bench = Bench()
    bench.submit(3, inputs=("thinker",))
    bench.worker.run(Queue(STOP), Queue())
    assert "[3]" in caplog.text
