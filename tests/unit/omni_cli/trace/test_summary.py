"""The numbers of a trace with known times: three stages in a row, 100, 200 and 300 ms of work, 1 ms between them."""

import json

import pytest

from omni_cli.runtime.events import (
    CONTROL,
    OutputFinished,
    ProcessDead,
    ProcessStarted,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RunFinished,
    RunStarted,
    StageSubmitted,
)
from omni_cli.trace.codec import SCHEMA, TraceEvent
from omni_cli.trace.report import report
from omni_cli.trace.summary import RunSummary, summarise, type_of
from stages.errors import ErrorInfo
from stages.events import (
    InputReady,
    MessageGot,
    MessagePut,
    OutputProduced,
    ProcessReady,
    Scheduled,
    StageCancelled,
    StageFailed,
    StageFinished,
    StepDone,
    StepRow,
)
from stages.messages import StreamMessage
from stages.payload import PayloadRef, TensorSpec
from tests.trace.scenarios import SCENARIOS

MS = 1_000_000
STAGES = ("thinker", "talker", "code2wav")
WORK_MS = {"thinker": 100, "talker": 200, "code2wav": 300}


def line(source: str, event: object) -> TraceEvent:
    return TraceEvent(source=source, ordinal=0, event=event)  # type: ignore[arg-type]


def trace_of(*events: tuple[str, object]) -> list[TraceEvent]:
    started = RunStarted(
        t_ns=MS,
        schema=SCHEMA,
        run_id="r",
        recipe="x",
        plan_digest="d",
        stages=STAGES,
        edges=(),
        outputs=(("text", "thinker"), ("audio", "code2wav")),
        wall_time="2025",
    )
    return [line(CONTROL, started), *(line(*event) for event in events)]


def serial() -> list[TraceEvent]:
    admitted = RequestAdmitted(
        t_ns=10 * MS, uid=1, request_id="a", seed=0, outputs=("text", "audio"), stages=STAGES, timeout_s=None
    )
    events: list[tuple[str, object]] = [(CONTROL, admitted)]
    now = 10
    for number, stage in enumerate(STAGES):
        source = f"{stage}.0"
        waits_for = STAGES[number - 1 : number] if number else ()
        events.append((CONTROL, StageSubmitted(t_ns=now * MS, uid=1, stage=stage, process=source, waits_for=waits_for)))
        if number:
            events.append((source, MessageGot(uid=1, t_ns=now * MS + MS // 2, producer=STAGES[number - 1], seq=0)))
        events.append((source, InputReady(uid=1, t_ns=(now + 1) * MS)))
        events.append((source, Scheduled(uid=1, t_ns=(now + 3) * MS)))
        start, half = now + 3, WORK_MS[stage] // 2
        for index in range(2):
            row = StepRow(uid=1, phase="decode", position=4 * index, units=4)
            begin, end = start + index * half, start + (index + 1) * half
            events.append((source, StepDone(index=index, t_ns=begin * MS, end_ns=end * MS, rows=(row,))))
            if stage == "thinker":
                text = "" if index == 0 else "hi"
                events.append((source, piece("text", index, end, text=text)))
            if stage == "code2wav":
                events.append((source, piece("audio", index, end, samples=24000 * index)))
        now = start + WORK_MS[stage]
        if stage != "code2wav":
            ref = PayloadRef(tensors=(), meta=(), nbytes=1000 * (number + 1))
            message = StreamMessage(
                uid=1, producer=stage, consumer=STAGES[number + 1], seq=0, units=8, eos=True, ref=ref
            )
            events.append((source, MessagePut(uid=1, t_ns=now * MS, message=message)))
        events.append((source, StageFinished(uid=1, t_ns=now * MS, reason="stop", units=8)))
    for modality in ("text", "audio"):
        finished = OutputFinished(t_ns=now * MS, uid=1, modality=modality, outcome="finished", units=8, chunks=2)
        events.append((CONTROL, finished))
    events.append((CONTROL, RequestFinished(t_ns=now * MS, uid=1)))
    events.append((CONTROL, RunFinished(t_ns=(now + 5) * MS, live_slots=0, events=0)))
    return trace_of(*events)


def piece(modality: str, seq: int, at_ms: int, *, text: str = "", samples: int = 0) -> OutputProduced:
    ref = None
    if modality == "audio":
        spec = TensorSpec(name="audio", dtype="float32", shape=(1, samples), offset=0)
        ref = PayloadRef(tensors=(spec,), meta=(("sample_rate_hz", 24000),), nbytes=4 * samples)
    reason = "stop" if seq else None
    return OutputProduced(
        uid=1, t_ns=at_ms * MS, modality=modality, seq=seq, units=4, eos=bool(seq), text=text, ref=ref, reason=reason
    )


@pytest.fixture
def run() -> RunSummary:
    return summarise(serial())


def test_stage_times_are_those_of_the_stages_and_add_up(run):
    request = run.requests[1]
    for stage, span in request.stages.items():
        assert span.run_ns == WORK_MS[stage] * MS
        assert (span.queue_ns, span.wait_ns, span.stall_ns) == (1 * MS, 2 * MS, 0)
        assert span.queue_ns + span.wait_ns + span.run_ns + span.stall_ns == span.total_ns
        assert (span.status, span.units, len(span.steps)) == ("finished", 8, 2)
    assert request.total_ns == sum(span.total_ns for span in request.stages.values())


def test_first_pieces_count_only_if_they_hold_something(run):
    request = run.requests[1]
    assert request.ttft_ns == 103 * MS  # the second piece of text, since the first was empty
    assert request.ttfa_ns == request.total_ns == 609 * MS


def test_the_real_time_factor_is_to_the_last_piece_over_the_playing_time(run):
    request = run.requests[1]
    audio = request.outputs["audio"]
    assert audio.audio_s == 1.0
    assert request.rtf(audio) == pytest.approx(0.609)
    assert request.rtf(request.outputs["text"]) is None


def test_bytes_and_hand_off_are_by_edge(run):
    edges = run.requests[1].edges
    assert {key: (e.messages, e.nbytes, e.mean_hand_off_ns) for key, e in edges.items()} == {
        ("thinker", "talker"): (1, 1000, MS // 2),
        ("talker", "code2wav"): (1, 2000, MS // 2),
    }


def test_steps_that_overlap_count_once(run):
    span = run.requests[1].stages["talker"]
    start, end = span.steps[0]
    span.steps.append((start + 1, end + 5))
    assert span.run_ns == WORK_MS["talker"] * MS  # the next step covers the rest


def test_batches_tell_of_ages_mixed_steps_and_frames_decoded_twice():
    events: list[tuple[str, object]] = [
        (
            CONTROL,
            RequestAdmitted(
                t_ns=uid // 2 * MS, uid=uid, request_id=f"r{uid}", seed=0, outputs=(), stages=STAGES, timeout_s=None
            ),
        )
        for uid in range(2, 8)
    ]  # two at a time
    steps = (
        [(2, "prefill", 0), (3, "prefill", 0)],  # of one age
        [(2, "decode", 1), (4, "decode", 1), (6, "decode", 1)],  # of three, but none in prefill
        [(3, "decode", 1), (5, "prefill", 0)],  # of two
    )
    for index, rows in enumerate(steps):
        found = tuple(StepRow(uid=uid, phase=phase, position=3, units=units) for uid, phase, units in rows)
        counters = (("frames_computed", 2), ("context_rows", 0))
        events.append(("talker.1", StepDone(index=index, t_ns=0, end_ns=1, rows=found, counters=counters)))
    run = summarise(trace_of(*events))
    talker = run.stages["talker"]
    assert (talker.steps, talker.rows, talker.units, talker.mixed, talker.ages) == (3, 7, 4, 1, 2)
    assert talker.counters == {"frames_computed": 6, "context_rows": 0}
    assert talker.frames_a_unit == 1.5
    (told,) = report(run, [])["stages"]
    assert (told["stage"], told["mixed_steps"], told["ages"], told["frames_a_unit"]) == ("talker", 1, 2, 1.5)


def test_the_lead_is_to_the_last_step_of_the_first_stage(run):
    request = run.requests[1]
    assert request.lead_ns("thinker") is None
    begin, last = request.stages["talker"].steps[0][0], request.stages["thinker"].steps[-1][0]
    assert request.lead_ns("talker") == last - begin < 0
    request.stages["code2wav"].steps[0] = (last - 7, last)
    assert request.lead_ns("code2wav") == 7
    request.stages["talker"].steps.clear()
    assert request.lead_ns("talker") is None


def test_failed_and_cancelled_requests_appear_with_what_they_came_to():
    error = ErrorInfo(kind="Boom", message="asked for", fault="server", stage="thinker")
    events: list[tuple[str, object]] = []
    for uid in (1, 2, 3):
        admitted = RequestAdmitted(
            t_ns=uid * MS, uid=uid, request_id=f"r{uid}", seed=0, outputs=("text",), stages=STAGES, timeout_s=None
        )
        events.append((CONTROL, admitted))
        events.append(
            (CONTROL, StageSubmitted(t_ns=uid * MS, uid=uid, stage="thinker", process="thinker.0", waits_for=()))
        )
    events += [
        ("thinker.0", InputReady(uid=1, t_ns=5 * MS)),
        ("thinker.0", StageFailed(uid=1, t_ns=9 * MS, error=error)),
        (CONTROL, RequestFailed(t_ns=10 * MS, uid=1, error=error)),
        (CONTROL, RequestCancelled(t_ns=11 * MS, uid=2, reason="the caller left")),
        ("thinker.0", StageCancelled(uid=2, t_ns=12 * MS)),
        (CONTROL, ProcessDead(t_ns=20 * MS, process="thinker.0", expected=False, cause="killed by SIGKILL")),
    ]
    run = summarise(trace_of(*events))
    one, two, three = run.requests.values()
    assert (one.status, one.error, one.total_ns) == ("failed", error, 9 * MS)
    assert (one.stages["thinker"].status, one.stages["thinker"].wait_ns) == ("failed", 4 * MS)
    assert (two.status, two.reason, two.stages["thinker"].status) == ("cancelled", "the caller left", "cancelled")
    assert (two.stages["thinker"].queue_ns, two.stages["thinker"].total_ns) == (10 * MS, 10 * MS)
    assert (three.status, three.stages["thinker"].status) == ("open", "lost")
    assert three.total_ns == 17 * MS
    assert not run.whole


def test_processes_tell_their_start_up_and_their_end():
    run = summarise(
        trace_of(
            (CONTROL, ProcessStarted(t_ns=2 * MS, process="thinker.0", generation=0, pid=7)),
            ("thinker.0", ProcessReady(t_ns=30 * MS, pid=7, facts=(("device", "cpu"),))),
            (CONTROL, ProcessDead(t_ns=40 * MS, process="thinker.0", expected=False, cause="exit code 3")),
            (CONTROL, ProcessStarted(t_ns=50 * MS, process="thinker.0", generation=1, pid=8)),
        )
    )
    first, second = run.processes
    assert (first.pid, first.ready_ns, first.dead_ns, first.cause) == (7, 30 * MS, 40 * MS, "exit code 3")
    assert (second.pid, second.ready_ns) == (8, None)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_trace_adds_up_wherever_it_stops(scenario):
    trace = SCENARIOS[scenario](1)
    for length in range(0, len(trace) + 1, 7):
        run = summarise(trace[:length])
        for request in run.requests.values():
            for span in request.stages.values():
                parts = (span.queue_ns, span.wait_ns, span.run_ns, span.stall_ns)
                assert min(parts) >= 0
                assert sum(parts) == span.total_ns
        json.dumps(report(run, run.requests.values()))


def test_the_report_is_in_milliseconds_from_the_start_of_the_run(run):
    data = report(run, run.requests.values())
    (request,) = data["requests"]
    assert (data["whole"], data["recipe"], request["id"], request["status"]) == (True, "x", "a", "finished")
    assert (request["admitted_ms"], request["total_ms"], request["ttft_ms"]) == (9.0, 609.0, 103.0)
    assert [stage["run_ms"] for stage in request["stages"]] == [100.0, 200.0, 300.0]
    assert request["outputs"][1]["rtf"] == 0.609


@pytest.mark.parametrize(("modality", "kind"), [("audio", "audio"), ("audio_mix", "audio"), ("text", "text")])
def test_a_label_does_not_change_the_type(modality, kind):
    assert type_of(modality) == kind


def test_a_request_that_was_run_again_has_its_last_attempt():
    runs = [summarise(SCENARIOS["restarted"](seed)) for seed in range(10)]
    spans = [span for run in runs for request in run.requests.values() for span in request.stages.values()]
    assert {span.attempt for span in spans} == {1, 2}
    assert {span.status for span in spans if span.attempt == 2} >= {"finished"}
    assert {process.generation for run in runs for process in run.processes} == {0, 1}
