"""Check and replay on whole traces: sound ones are clean and decided alike, cut ones are truncated, and damaged ones
are found out."""

import functools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_cli.runtime.events import (
    OutputFinished,
    ProcessStarted,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RunFinished,
)
from omni_cli.trace.check import Checked, check, name_of
from omni_cli.trace.codec import TraceEvent, decode, encode
from omni_cli.trace.replay import Replay
from stages.events import StageFinished
from tests.trace.mutations import KINDS, is_decision, mutate, only_ordinals_show, renumber
from tests.trace.scenarios import IMAGE, SCENARIOS
from tests.trace.simulated_run import SimulatedRun, TraceOfPlan
from tests.unit.omni_cli.runtime.simulation import DIAMOND, DIAMOND_OUTPUTS, LINE, LINE_OUTPUTS

everything = pytest.mark.parametrize("scenario", SCENARIOS)


@functools.cache
def sound(scenario: str, seed: int) -> TraceOfPlan:
    return SCENARIOS[scenario](seed)


@everything
@pytest.mark.parametrize("seed", range(5))
def test_a_sound_trace_is_clean_and_decided_alike(scenario, seed):
    trace = sound(scenario, seed)
    written = Checked([decode(encode(line.source, line.ordinal, line.event)) for line in trace])
    replay = Replay(trace.plan, written)
    assert replay.run() == []
    assert written.findings == []
    assert replay.decisions == sum(map(is_decision, trace))


def test_the_scenarios_end_in_every_way():
    ends = {
        scenario: {type(line.event) for seed in range(5) for line in sound(scenario, seed)}
        & {RequestFinished, RequestFailed, RequestCancelled}
        for scenario in SCENARIOS
    }
    assert ends["failed"] == ends["killed"] == ends["expired"] == {RequestFinished, RequestFailed}
    assert ends["cancelled"] == {RequestFinished, RequestCancelled}
    assert ends["finished"] == ends["dag"] == ends["whole_payloads"] == {RequestFinished}


@everything
def test_a_trace_that_stops_anywhere_is_truncated_and_nothing_else(scenario):
    trace = sound(scenario, 0)
    for length in range(1, len(trace), 3):
        cut = Checked(trace[:length])
        assert Replay(trace.plan, cut).run() == []
        (finding,) = cut.findings
        assert finding.line == length
        assert finding.text == f"truncated at {name_of(trace[length - 1])}"


def test_an_empty_trace_is_truncated():
    (finding,) = check([])
    assert finding.text.startswith("truncated at the start")


def is_found_out(trace: list[TraceEvent]) -> bool:
    checked = Checked(trace)
    return any(checked.findings for _ in checked) or bool(checked.findings)


@everything
@pytest.mark.parametrize("kind", KINDS)
def test_of_200_traces_damaged_in_this_way_every_one_is_found_out(scenario, kind):
    """Also when ordinals and counts were made to fit, but for the few that may have been. Damage to what was decided
    is shown by the decisions alone."""
    rng = random.Random(f"{scenario} {kind}")
    missed = decided_alike = 0
    for number in range(200 // len(SCENARIOS)):
        trace = sound(scenario, number % 10)
        mutation = mutate(trace, kind, rng)
        assert is_found_out(mutation.trace), mutation.said
        damaged = Checked(renumber(mutation.trace))
        differs = Replay(trace.plan, damaged).run()
        if not differs and not damaged.findings:
            assert only_ordinals_show(mutation, trace), mutation.said
            missed += 1
        if not differs and is_decision(trace[mutation.places[0]]):
            assert kind == "swap", mutation.said  # a request that enters a little earlier or later, as there is room
            decided_alike += 1
    assert missed <= 1, "what only the ordinals show is rare"
    assert decided_alike <= 1


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 3)),
        st.tuples(st.just("act"), st.integers(0, 30)),
        st.tuples(st.just("act"), st.integers(0, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 10)),
        st.tuples(st.just("fail"), st.integers(0, 7)),
        st.tuples(st.just("expire"), st.just(0)),
        st.tuples(st.just("kill"), st.integers(0, 30)),
        st.tuples(st.just("start"), st.integers(0, 3)),
    ),
    max_size=40,
)
WANTED = (("text",), ("sum",), ("text", "left", "sum"), ("left",))


@settings(max_examples=150, deadline=None)
@given(
    actions=ACTIONS,
    incremental=st.booleans(),
    seed=st.integers(),
    replicas=st.integers(1, 2),
    media=st.booleans(),
    restarts=st.integers(0, 2),
    retry=st.integers(0, 1),
    max_batch=st.integers(1, 2),
    max_queue=st.one_of(st.none(), st.integers(0, 2)),
)
def test_whatever_happens_the_trace_is_clean(actions, media, **more):
    run = SimulatedRun(DIAMOND, DIAMOND_OUTPUTS, media=media, **more)
    processes = tuple(run.stages)
    uid = 0
    for what, number in actions:
        process = processes[number % len(processes)]
        if what == "admit":
            uid += 1
            image = IMAGE if media and uid % 2 else None
            run.admit(uid, outputs=WANTED[number], media=image, timeout_s=1e-6 if number == 0 else None)
        elif what == "act" and run.stages:
            run.some(number)
        elif what == "cancel":
            run.cancel(number)
        elif what == "fail" and process in run.stages:
            run.stages[process].fail_next = True
        elif what == "expire":
            run.now += 500
            run.orchestrator.expire()
            run.deliver()
        elif what == "kill" and number < len(processes):
            run.kill(process)
        elif what == "start":
            run.start(well=number > 1, final=number == 0)
    written = Checked(run.finish())
    assert Replay(run.plan, written).run() == []
    assert written.findings == []


@pytest.mark.parametrize("later", ["admitted", "cancelled", "too late"])
def test_a_request_may_be_cancelled_while_it_waits_to_be_run_again_and_another_move_before_the_restart(later):
    run = SimulatedRun(LINE, LINE_OUTPUTS, incremental=True, seed=1, restarts=3, retry=1)
    run.admit(3, timeout_s=0.5)
    while run.act("thinker.0"):  # it is the talker's then
        pass
    run.admit(1)
    run.kill("thinker.0")
    run.cancel(1)
    run.start()
    run.act("thinker.0")
    run.kill("thinker.0")  # it starts in a second
    run.now += 500_000_000
    if later == "admitted":
        run.admit(2)
    elif later == "cancelled":
        run.cancel(3)
    else:
        run.orchestrator.expire()
        run.deliver()
    written = Checked(run.finish())
    assert Replay(run.plan, written).run() == []
    assert written.findings == []


def test_slots_that_the_rings_still_have_in_use_are_reported():
    *trace, last = sound("finished", 0)
    assert isinstance(last.event, RunFinished)
    (finding,) = check([*trace, replace(last, event=replace(last.event, live_slots=2))])
    assert finding.text.startswith("2 slots are in use in the rings at the end, the trace accounts for 0")


def test_units_that_do_not_add_up_are_reported():
    trace = list(sound("finished", 0))
    place = next(n for n, line in enumerate(trace) if isinstance(line.event, StageFinished))
    line = trace[place]
    trace[place] = replace(line, event=replace(line.event, units=9))
    (finding,) = check(trace)
    assert finding.line == place + 1
    assert "with 9 units, its steps have done 3" in finding.text


def test_a_deadline_that_has_passed_is_held_against_a_trace_that_goes_on():
    trace = sound("finished", 0)
    later = []
    for line in trace:
        event = line.event
        if isinstance(event, RequestAdmitted) and event.uid == 1:
            event = replace(event, timeout_s=1e-6)
        later.append(replace(line, event=replace(event, t_ns=event.t_ns + line.ordinal * 1_000_000_000)))
    first, *_ = Replay(trace.plan, later).run()
    assert (first.uid, first.recorded, first.cause) == (1, None, "the end of its time")
    assert isinstance(first.decided, OutputFinished)


def test_a_process_that_is_not_to_be_started_again_is_told():
    trace = sound("restarted", 0)
    stages = tuple(stage.model_copy(update={"restarts": 0}) for stage in trace.plan.stages)
    found = Replay(trace.plan.model_copy(update={"stages": stages}), trace).run()
    first = next(d for d in found if isinstance(d.recorded, ProcessStarted))
    assert (first.decided, first.note) == (None, f"{first.recorded.process} is not to be started again, or not yet")
