"""The tables by themselves: every state can be reached and left, endings are final, and illegal events are refused."""

from pathlib import Path

import pytest

from omni_cli.runtime.diagram import document
from omni_cli.runtime.events import RequestAdmitted, RequestFinished, StageSubmitted
from omni_cli.runtime.leases import LeaseLedger
from omni_cli.runtime.lifecycle import (
    OUTPUT,
    REQUEST,
    REQUEST_ENDED,
    STAGE,
    STAGE_ENDED,
    TABLES,
    IllegalTransition,
    Lifecycle,
    Request,
    Stage,
    advance,
)
from stages.events import InputReady, LeaseReleased, StepDone, StepRow
from stages.lease import Lease

ADMITTED = RequestAdmitted(
    t_ns=1, uid=1, request_id="a", seed=1, outputs=("text",), stages=("thinker",), timeout_s=None
)
SUBMITTED = StageSubmitted(t_ns=2, uid=1, stage="thinker", process="thinker.0", waits_for=())


def admitted() -> Lifecycle:
    life = Lifecycle()
    life.apply("omni", ADMITTED)
    life.apply("omni", SUBMITTED)
    return life


@pytest.mark.parametrize("name", TABLES)
def test_every_state_is_reached_and_only_endings_cannot_be_left(name):
    table = TABLES[name]
    states = type(next(iter(table))[0])
    first = next(iter(states))
    reached, frontier = {first}, [first]
    while frontier:
        state = frontier.pop()
        for (source, _), target in table.items():
            if source is state and target not in reached:
                reached.add(target)
                frontier.append(target)
    assert reached == set(states)
    endings = {state for state in states if all(target is state for (s, _), target in table.items() if s is state)}
    expected = {
        "request": set(REQUEST_ENDED),
        "stage": STAGE_ENDED - {"lost"},  # it may be run again
        "output": {s for s in states if s in {"finished", "empty", "failed", "cancelled"}},
        "stream": {s for s in states if s == "ended"},
        "lease": {s for s in states if s == "released"},
        "process": set(),  # a dead one may be started again
    }
    assert endings == expected[name]


def test_an_ended_request_ends_only_once():
    for ended in REQUEST_ENDED:
        for event in ("finished", "failed", "cancelled", "submitted"):
            with pytest.raises(IllegalTransition):
                advance(REQUEST, ended, event, 1, "request 1")


def test_a_cancelling_stage_takes_what_was_on_the_wire_and_then_the_answer():
    late = [event for state, event in STAGE if state is Stage.RUNNING and event not in ("cancelling", "process dead")]
    for event in late:
        assert STAGE[Stage.CANCELLING, event] is Stage.CANCELLING
    assert STAGE[Stage.CANCELLING, "cancelled"] is Stage.CANCELLED


def test_no_output_finishes_before_its_last_piece():
    assert {state for (state, event) in OUTPUT if event == "finished"} == {"ended"}


def test_a_request_cannot_finish_while_an_output_is_open():
    with pytest.raises(IllegalTransition, match="text"):
        admitted().apply("omni", RequestFinished(t_ns=3, uid=1))


def test_events_count_only_from_the_replica_that_holds_the_request():
    with pytest.raises(IllegalTransition, match=r"thinker\.1"):
        admitted().apply("thinker.1", InputReady(uid=1, t_ns=3))


def test_an_unknown_request_is_refused():
    with pytest.raises(IllegalTransition, match="request 9"):
        admitted().apply("thinker.0", InputReady(uid=9, t_ns=3))


def test_a_step_must_go_on_where_the_last_one_ended():
    life = admitted()
    life.requests[1].stages["thinker"].state = Stage.RUNNING

    def step(position: int) -> StepDone:
        row = StepRow(uid=1, phase="decode", position=position, units=2)
        return StepDone(index=0, t_ns=1, end_ns=2, rows=(row,))

    life.apply("thinker.0", step(0))
    life.apply("thinker.0", step(2))
    with pytest.raises(IllegalTransition, match="at 4"):
        life.apply("thinker.0", step(2))


def test_a_request_is_over_only_when_its_stages_are():
    record = admitted().requests[1]
    record.state = Request.FAILED
    assert not record.over
    record.stages["thinker"].state = Stage.CANCELLED
    assert record.over


def test_a_lease_cannot_be_released_by_somebody_else():
    ledger = LeaseLedger()
    lease = Lease(owner="thinker.0", number=0, slot=0)
    with pytest.raises(IllegalTransition):
        ledger.apply("talker.0", LeaseReleased(uid=1, t_ns=1, lease=lease))


def test_the_documented_diagram_is_the_table():
    text = Path(__file__).parents[4].joinpath("docs", "structures.md").read_text(encoding="utf-8")
    assert document() in text, "run `python -m omni_cli.runtime.diagram` and put its output into docs/structures.md"
