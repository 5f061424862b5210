import io
from dataclasses import replace

import pytest
from rich.console import Console

from omni_cli.runtime.events import RequestAdmitted
from omni_cli.trace.report import report
from omni_cli.trace.show import duration, plain, show, size
from omni_cli.trace.summary import QUEUE, RUN, STALL, WAIT, Phase, summarise
from omni_cli.trace.timeline import Timeline
from tests.trace.scenarios import SCENARIOS


def shown(trace, width: int = 100, terminal: bool = False) -> str:
    file = io.StringIO()
    run = summarise(trace)
    show(Console(file=file, width=width, force_terminal=terminal), run, list(run.requests.values()))
    return file.getvalue()


def test_every_request_stage_and_process_is_there():
    text = shown(SCENARIOS["failed"](1))
    for word in ("request r1", "request r2", "request r3", "thinker.0", "talker.0", "code2wav.0"):
        assert word in text
    assert "in thinker: Boom: asked for" in text
    assert "thinker -> talker: 1 message, 3.84 kB, hand-off" in text
    assert "TTFT" in text
    assert "TTFA" in text
    assert "RTF" in text


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("width", [20, 40, 71, 72, 80, 200])
def test_nothing_is_wider_than_the_terminal(scenario, width):
    assert max(map(len, shown(SCENARIOS[scenario](1), width).splitlines())) <= width


def test_the_callers_trace_is_named():
    trace = [
        replace(line, event=replace(line.event, traceparent="00-0af7-b7ad-01"))
        if isinstance(line.event, RequestAdmitted) and line.event.request_id == "r2"
        else line
        for line in SCENARIOS["finished"](1)
    ]
    assert shown(trace).count("traceparent 00-0af7-b7ad-01") == 1
    found = report(summarise(trace), summarise(trace).requests.values())["requests"]
    assert [request["traceparent"] for request in found if request["id"] == "r2"] == ["00-0af7-b7ad-01"]


def test_batches_and_leads_are_told():
    run = summarise(SCENARIOS["finished"](1))
    talker, request = run.stages["talker"], run.requests[1]
    talker.mixed, talker.ages = 4, 3
    talker.counters.update(frames_computed=talker.units, context_rows=7)
    request.stages["talker"].steps.insert(0, (request.stages["thinker"].steps[-1][0] - 5_000, 0))
    file = io.StringIO()
    show(Console(file=file, width=200), run, [request])
    assert (
        f"talker: {talker.steps} steps of {talker.rows_a_step:.1f} rows, 4 with prefill and decode" in file.getvalue()
    )
    assert "of up to 3 ages, 1.00 frames computed for each that was emitted" in file.getvalue()
    assert "context_rows 7" in file.getvalue()
    assert "talker began 5 us before the last step of thinker" in file.getvalue()


def test_a_pipe_gets_plain_text_and_a_terminal_colours():
    trace = SCENARIOS["finished"](1)
    assert "\x1b" not in shown(trace)
    assert "\x1b[" in shown(trace, terminal=True)


def test_a_trace_that_stops_early_says_so():
    trace = SCENARIOS["finished"](1)
    assert "the trace stops before the end of the run" in shown(trace[:50])
    assert "the trace stops" not in shown(trace)
    assert "a trace without a start" in shown([])


def test_a_name_cannot_move_the_cursor():
    trace = [
        replace(line, event=replace(line.event, request_id="\x1b[2J[bold]\n"))
        if isinstance(line.event, RequestAdmitted)
        else line
        for line in SCENARIOS["finished"](1)
    ]
    text = shown(trace)
    assert "\x1b" not in text
    assert r"request \x1b[2J[bold]\n" in text


def test_many_requests_get_a_line_each():
    trace = SCENARIOS["finished"](1)
    run = summarise(trace)
    file = io.StringIO()
    show(Console(file=file, width=80), run, list(run.requests.values()) * 7)
    text = file.getvalue()
    assert text.count("r1  ") == 7
    assert "--request ID shows one of them in full" in text


def test_a_timeline_has_every_phase_even_if_it_is_short():
    phases = [Phase(QUEUE, 0, 500), Phase(WAIT, 500, 501), Phase(RUN, 501, 502), Phase(STALL, 502, 1000)]
    cells = Timeline(phases, 0, 1000).cells(10)
    assert cells == [QUEUE] * 5 + [RUN] + [STALL] * 4
    assert Timeline([Phase(RUN, 1000, 1000)], 0, 1000).cells(10) == [None] * 9 + [RUN]
    assert Timeline([], 5, 5).cells(3) == [None] * 3


@pytest.mark.parametrize(
    ("ns", "text"),
    [(None, "-"), (0, "0 us"), (780_400, "780 us"), (45_600_000, "45.6 ms"), (1_234_000_000, "1.23 s")],
)
def test_durations_have_three_digits(ns, text):
    assert duration(ns) == text


@pytest.mark.parametrize(("nbytes", "text"), [(812, "812 B"), (3840, "3.84 kB"), (64_000_000, "64.0 MB")])
def test_sizes_have_three_digits(nbytes, text):
    assert size(nbytes) == text


def test_plain_text_stays_as_it_is():
    assert plain("größe 你好 😀") == "größe 你好 😀"
    assert plain("a\tb\ud800\u202e") == r"a\tb\ud800\u202e"
