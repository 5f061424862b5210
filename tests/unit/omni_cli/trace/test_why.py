from dataclasses import replace

import pytest

from omni_cli.runtime.events import CONTROL, ProcessDead, StageSubmitted
from omni_cli.runtime.lifecycle import OUTPUT_ENDED, REQUEST_ENDED
from omni_cli.trace.codec import TraceEvent
from omni_cli.trace.show import growth
from omni_cli.trace.split import levels, split
from omni_cli.trace.summary import RequestSummary, StageSpan, summarise
from omni_cli.trace.why import LastHeard, ending, moment
from tests.trace.scenarios import SCENARIOS
from tests.trace.simulated_run import SimulatedRun
from tests.unit.omni_cli.runtime.simulation import LINE, LINE_OUTPUTS

SEED = 3  # one with which the request is still there when it is cancelled, and when a process is killed
STATES = {
    "not submitted": "It was not submitted to thinker",
    "on its way": "It is on its way to thinker.0",
    "not submitted for want of data": "It was not submitted to talker: nothing has come from thinker",
    "done, not routed": "is done with a message for talker, but it was not routed there yet",
    "waiting for data": "talker.0 has it and waits for data: 0 of the 1 messages put by thinker were read",
    "waiting for a slot": "has what it needs to start and waits for a slot: ",
    "waiting for a slot or a piece": "waits for a slot, or for a larger piece of its input: ",
    "running": "talker.0 is running it, at unit 1, last heard of",
    "output done, not routed": "audio is complete (3 units) and was not routed to the caller yet",
    "text without the rest": "text has ended, but a request ends with the last of its outputs. audio has",
    "needs the whole": "talker takes thinker `complete` (pipeline.stages.talker.inputs.thinker)",
    "slots": "of the slots in its ring are not read by",
    "cancelled": "was told to let go of it and has not answered",
    "died": "has died with it",
}


def paragraphs(name: str) -> list[str]:
    """What is said of every request of a scenario at every moment of its life; each open output is in it."""
    trace, found = SCENARIOS[name](SEED), []
    deaths = [line.event.t_ns for line in trace if isinstance(line.event, ProcessDead)]
    for request in summarise(trace).requests.values():
        ns = {
            *range(0, request.total_ns + 40, 5),
            *(t - request.admitted_ns for t in deaths if t > request.admitted_ns),
        }
        for after_ns in ns:
            state = moment(trace, request.request_id, after_ns)
            record = state.find(request.request_id)
            said = state.why(record)
            if record.state not in REQUEST_ENDED:
                assert all(f"{m} " in said for m, o in record.outputs.items() if o.state not in OUTPUT_ENDED)
            found.append(said)
    return found


@pytest.fixture(scope="module")
def said() -> str:
    return "\n".join(line for name in SCENARIOS for line in paragraphs(name))


@pytest.mark.parametrize("state", STATES)
def test_each_state_is_told(said, state):
    assert STATES[state] in said


def test_without_a_moment_the_end_of_the_trace_counts():
    trace = SCENARIOS["finished"](1)
    cut = trace[: len(trace) // 2]
    state = moment(cut, "r1", None)
    assert state.why(state.find("r1")).startswith("r1 was admitted")
    assert moment(cut[1:], "r1", None) is None


def test_a_stage_without_a_process_is_named():
    trace = SCENARIOS["finished"](SEED)
    cut = next(place for place, line in enumerate(trace) if isinstance(line.event, StageSubmitted)) + 1
    dead = ProcessDead(t_ns=trace[cut - 1].event.t_ns, process="talker.0", expected=False, cause="killed")
    state = moment([*trace[:cut], replace(trace[cut], source=CONTROL, event=dead)], "r1", None)
    assert "No process of talker is alive" in state.why(state.find("r1"))


def test_an_output_that_the_run_does_not_make_is_said_to_be_none():
    trace = SCENARIOS["finished"](SEED)
    started = replace(trace[0].event, outputs=(("text", "thinker"),))
    state = moment([replace(trace[0], event=started), *trace[1:]], "r1", 1)
    assert "No stage of this run makes audio." in state.why(state.find("r1"))


def test_a_request_that_waits_to_be_run_again_says_so():
    run = SimulatedRun(LINE, LINE_OUTPUTS, incremental=False, seed=SEED, restarts=1, retry=1)
    run.admit(1)
    run.kill("thinker.0")
    trace = [TraceEvent(source=source, ordinal=n, event=event) for n, (source, event) in enumerate(run.events)]
    state = moment(trace, "r1", None)
    said = state.why(state.find("r1"))
    assert "thinker.0 has died with it. No process of thinker is alive; it waits for one to be started again." in said
    assert "It is run again as soon as there is a place for it" in said


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_kept_of_requests_that_have_ended(name):
    heard = LastHeard()
    for line in SCENARIOS[name](SEED):
        heard(line.source, line.event)
        assert not any(CONTROL in places for places in heard.at.values())
    assert heard.at == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [("failed", "Boom in stage"), ("cancelled", "asked for"), ("expired", "not done after timeout_s")],
)
def test_an_end_is_told_with_its_reason(name, text):
    ends = [ending(request) for request in summarise(SCENARIOS[name](SEED)).requests.values()]
    assert any(text in end for end in ends)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_split_adds_up(name):
    for request in summarise(SCENARIOS[name](1)).requests.values():
        assert sum(split(request).values()) == request.total_ns


def request(at_ns: int, wait_ns: int) -> RequestSummary:
    """10 ns on the way in, a wait, then two steps of 100 ns with 5 ns between, and 1 ns on the way out."""
    ready = at_ns + 10 + wait_ns
    span = StageSpan("a", "a.0", at_ns, ready + 205, ready_ns=at_ns + 10, scheduled_ns=ready, status="finished")
    span.steps += [(ready, ready + 100), (ready + 105, ready + 205)]
    return RequestSummary(at_ns, "r", at_ns, ready + 206, status="finished", stages={"a": span})


def test_what_grows_with_the_load_is_named():
    alone = request(10_000, 0)
    assert split(alone) == {("hand-off", "a"): 10, ("run", "a"): 200, ("stall", "a"): 5, ("output", ""): 1}
    low, high = levels([alone, *(request(0, 300) for _ in range(4))])
    assert (low.name, low.requests, low.mean_total_ns) == ("1", 1, 216)
    assert (high.name, high.requests, high.mean_ns("run")) == ("4", 4, 200)
    assert growth([low, high]) == "from 1 to 4 in flight the mean grows by 0 us, most of it 0 us wait in a"
