"""What follows from stamps: playback, latency, real-time factor, what stages did. No clock, no engine."""

import asyncio
from dataclasses import replace
from statistics import mean
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.bench.compare import _apart
from omni_cli.bench.level import Drawing, Level, tables
from omni_cli.bench.load import Load, closed_loop, open_loop, poisson_arrivals
from omni_cli.bench.plot import draw
from omni_cli.bench.served import Piece, Served, play
from omni_cli.bench.steps import StepLog, stage_load
from omni_cli.config.load import load_config
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory
from omni_cli.runtime.events import CONTROL, RequestAdmitted
from omni_cli.table import fitting
from stages.events import InputReady, StepDone, StepRow

MS = 1_000_000


@pytest.mark.parametrize(
    ("pieces", "underruns", "silence_s", "prebuffer_s"),
    [
        ([], 0, 0, 0),
        ([(5.0, 1.0)], 0, 0, 0),
        ([(5.0, 1.0), (6.0, 1.0), (6.5, 1.0)], 0, 0, 0),  # the second comes just in time
        ([(0.0, 1.0), (1.25, 1.0), (2.0, 1.0)], 1, 0.25, 0.25),  # the pause has made room for the third
        ([(0.0, 1.0), (1.25, 1.0), (2.5, 1.0)], 2, 0.5, 0.5),
        ([(0.0, 1.0), (1.25, 2.0), (2.5, 1.0)], 1, 0.25, 0.25),
        ([(0.0, 0.0), (3.0, 1.0), (3.5, 0.0), (4.0, 1.0)], 0, 0, 0),  # what cannot be heard starts nothing
    ],
)
def test_a_player_that_starts_at_once(pieces, underruns, silence_s, prebuffer_s):
    found = play(pieces)
    assert (found.underruns, found.silence_s, found.prebuffer_s) == (underruns, silence_s, prebuffer_s)


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 400)), min_size=1))
def test_with_its_pre_buffer_it_never_runs_dry_and_with_less_it_does(steps):
    came, pieces = 0, []
    for gap, plays in steps:
        came += gap
        pieces.append((came, plays))
    found = play(pieces)

    def late(start):
        ends, runs = start, 0
        for came, plays in pieces:
            runs += came > ends
            ends += plays
        return runs

    start = pieces[0][0] + found.prebuffer_s
    assert late(start) == 0
    assert (found.underruns == 0) == (found.prebuffer_s == 0)
    assert found.prebuffer_s == 0 or late(start - 1) > 0
    assert found.silence_s == found.prebuffer_s  # a pause fills the buffer as waiting before would have


def served(number=0, *, start=0, error=None, texts=(), sounds=()):
    """`texts` in ms, `sounds` as (ms, seconds)."""
    pieces = [Piece(t_ns=at * MS, modality="text", units=1) for at in texts]
    pieces += [Piece(t_ns=at * MS, modality="audio", units=10, plays_s=s) for at, s in sounds]
    return Served(number=number, start_ns=start * MS, end_ns=1000 * MS, pieces=pieces, error=error)


def test_a_request_as_its_caller_saw_it():
    one = served(start=100, texts=(130, 140), sounds=((200, 0.0), (250, 0.5), (400, 1.0), (1000, 0.5)))
    assert (one.ttft_s, one.ttfa_s) == (0.03, 0.15)
    assert one.gaps_s == (0.15, 0.6)
    assert one.audio_s == 2.0
    assert one.rtf == 0.9 / 2.0
    one.check({"audio": 40, "text": None})
    assert one.error is None
    one.check({"audio": 41, "text": 2})
    assert one.error == "request 0 gave 40 of 41 units of audio"
    silent = served(texts=(5,))
    assert (silent.ttfa_s, silent.rtf, silent.gaps_s, silent.audio_s) == (None, None, (), 0)


def test_of_several_outputs_the_first_one_heard_is_played():
    one = served(sounds=((200, 0.5),))
    one.pieces.append(Piece(t_ns=300 * MS, modality="audio_mix", units=1, plays_s=9.0))
    assert one.audio_s == 0.5


def step(index, start, end, *uids, units=1, counters=(), phase="decode", position=None):
    at = index if position is None else position
    rows = tuple(StepRow(uid=uid, phase=phase, position=at, units=units) for uid in uids)
    return StepDone(index=index, t_ns=start * MS, end_ns=end * MS, rows=rows, counters=counters)


def test_what_a_stage_did():
    first = [
        step(0, 0, 10, 1, units=0),
        step(1, 12, 20, 1, 2, counters=(("graph_replays", 1),)),
        step(2, 23, 30, 1, counters=(("graph_replays", 1),)),
        step(3, 90, 100, 3),
    ]
    second = [step(0, 0, 20, 4), step(1, 20, 60, 4, units=4)]
    load = stage_load("talker", "frame", [first, second], available_s=0.2, counted={1, 2, 3, 4})
    assert load.steps == 6
    assert load.rows == 7 / 6
    assert load.step_ms == (10, 8, 7, 10, 20, 40)
    assert load.gap_ms == (2, 3, 0)  # nobody in step 3 has waited since step 2
    assert load.busy == pytest.approx(0.095 / 0.2)
    assert load.unit_ms == (10, 10)  # of requests 1 and 4; the others had one step with units
    assert load.counters == {"graph_replays": 2}
    some = stage_load("talker", "frame", [[first[0], first[2]], second], available_s=0.2, counted={1})
    assert some.gap_ms == (0,)  # what lies between steps 0 and 2 is no pause: step 1 was left out
    assert some.unit_ms == ()


@pytest.fixture(scope="module")
def plan():
    return build_plan(load_config(["recipe=synthetic"]), Inventory())


def test_what_a_failed_request_did_counts_for_stages_and_for_no_request(plan):
    log = StepLog(plan)
    for uid, request_id in ((11, "0-0"), (12, "0-1")):
        admitted = RequestAdmitted(
            t_ns=0, uid=uid, request_id=request_id, seed=0, outputs=("text",), stages=("thinker",), timeout_s=None
        )
        log(CONTROL, admitted)
        log("thinker.0", InputReady(uid=uid, t_ns=0, prompt_tokens=uid))
    for index in range(3):
        log("thinker.0", step(index, 20 * index, 20 * index + 10 + 5 * index, 11, 12))
    good, bad = served(0, start=500, texts=(510,)), served(1, start=600, texts=(900,), error="no")
    found = Level.of(CLOSED, [bad, good], [bad], log, prefix="0-", drawing=Drawing())
    assert (found.wall_s, found.warm_up_failed) == (0.5, 1)  # from when the first of them was due
    assert found.prompt_tokens == (11,)
    (stage,) = found.stages
    assert (stage.steps, stage.rows, stage.unit_ms) == (3, 2, (25,))
    assert stage.busy == pytest.approx(0.045 / 0.5)


CLOSED = Load(callers=2, requests=3)


def test_what_a_stage_did_that_draws():
    log = StepLog(build_plan(load_config(["recipe=qwen_image", "model.path=tiny"]), Inventory()))
    for uid, at in ((1, 0), (2, 15)):
        admitted = RequestAdmitted(
            t_ns=at * MS,
            uid=uid,
            request_id=f"0-{uid}",
            seed=0,
            outputs=("image",),
            stages=("painter",),
            timeout_s=None,
        )
        log(CONTROL, admitted)
    steps = (
        step(0, 2, 4, 1, units=0, phase="encode", position=0),
        step(1, 4, 14, 1, phase="denoise", position=0),
        step(2, 14, 24, 1, phase="denoise", position=1),
        step(3, 24, 26, 2, units=0, phase="encode", position=0),
        step(4, 26, 36, 2, phase="denoise", position=0),
        step(5, 36, 56, 1, units=0, position=2),
        step(6, 56, 66, 2, phase="denoise", position=1),
    )
    for one in steps:
        log("painter.0", one)
    drawn = [
        Served(number=n, start_ns=0, end_ns=at * MS, pieces=[Piece(t_ns=at * MS, modality="image", units=1)])
        for n, at in ((1, 60), (2, 100))
    ]
    found = Level.of(CLOSED, drawn, [], log, prefix="0-", drawing=Drawing(step_flop=10**12, peak=4e14))
    assert [load.stage for load in found.stages] == ["painter_encode", "painter_denoise", "painter_decode"]
    figures = found.figures()
    assert figures["image_s"].samples == (0.06, 0.1)
    assert figures["steps_per_s"].samples == (40.0,)  # 4 in 100 ms
    assert figures["join_steps"].samples == (0, 1)  # one that was running when it came
    assert figures["join_ms"].samples == (4, 11)
    assert figures["tflop_per_s"].samples == (100.0,)  # 4 steps of a request in 40 ms of steps
    assert figures["peak_share"].samples == (0.25,)
    assert "prompt_tokens" not in figures
    (_, (row,)), _ = tables([found])
    assert row == ("2 at once", "2", "0", "0.08 0.10", "20.0", "40.0", "0.50 1.00", "7.50 11.0", "100", "25%")
    ((header, (short,)), _) = tables([replace(found, drawing=Drawing())])
    assert (header[-1], short) == ("ms to join", row[:-2])


def test_pictures_are_held_against_each_other_channel_by_channel():
    assert _apart(bytes([0, 255, 9]), bytes([0, 250, 10])) == 5
    assert _apart(bytes([255]), bytes([0])) == 255
    assert _apart(b"", b"a") == 255


@pytest.mark.parametrize(
    ("most", "columns"),
    [
        (100_000, [[0, 1, 2, 3, 4]]),
        (40, [[0, 1, 2, 3], [0, 1, 4]]),
        (10, [[0, 1, 2], [0, 1, 3], [0, 1, 4]]),  # no narrower than a column and what the row is called
    ],
)
def test_a_table_that_is_too_wide_is_several_of_which_each_names_its_rows(most, columns):
    rows = [("1 at once", "a", "x", "x", "x"), ("1 at once", "b", "x", "x", "x"), ("4 at once", "a", "x", "x", "x")]
    assert fitting([9, 5, 6, 6, 20], rows, most) == columns


def level(*requests, load=CLOSED):
    stages = (stage_load("talker", "frame", [[step(0, 0, 10, 1), step(1, 15, 25, 1)]], 1.0, {1}),)
    return Level(load=load, wall_s=2.0, served=requests, warm_up_failed=0, prompt_tokens=(100,), stages=stages)


def test_a_failed_request_is_counted_and_is_part_of_no_figure():
    good = served(0, texts=(10,), sounds=((50, 3.0), (90, 1.0)))
    bad = served(1, texts=(900,), sounds=((950, 5.0),), error="request 1 failed in stage talker")
    found = level(good, bad)
    figures = found.figures()
    assert (len(found.done), len(found.failed)) == (1, 1)
    assert figures["ttfa_ms"].samples == (50.0,)
    assert figures["xrt"].samples == (2.0,)
    assert figures["requests_per_s"].samples == (0.5,)
    assert figures["talker_frame_ms"].samples == (15.0,)
    (_, (row,)), (_, (stage,)) = tables([found])
    assert row[:5] == ("2 at once", "1", "1", "10.0 10.0", "50.0 50.0")
    assert stage[:4] == ("2 at once", "talker", "2%", "2")


def test_without_an_answer_there_is_no_figure_but_a_row():
    found = level(served(0, error="no"))
    assert "ttft_ms" not in found.figures()
    (_, (row,)), _ = tables([found])
    assert row == ("2 at once", "0", "1", "-", "-", "-", "-", "-", "-", "-", "0.00")


def test_the_plot_is_svg_with_a_point_for_each_load_and_nothing_for_what_is_absent():
    text = served(0, texts=(10,))
    picture = draw([level(text), level(text, load=Load(rate=2.5, requests=1)), level(served(0, error="no"))])
    root = ElementTree.fromstring(picture)
    shown = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "time to first token, ms" in shown
    assert "2.5/s" in shown
    assert not any("audio" in text for text in shown)
    # two panels, two lines each: two loads have a first token, all have a rate of requests
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == 2 * 2 + 2 * 3


def test_a_closed_loop_keeps_its_callers_busy_and_no_more():
    running, most, made = set(), 0, []

    async def ask(number, due_ns):
        nonlocal most
        running.add(number)
        most = max(most, len(running))
        made.append(number)
        await asyncio.sleep(0)
        running.remove(number)

    asyncio.run(closed_loop(7, 3, ask))
    assert sorted(made) == list(range(7))
    assert most == 3


def test_an_open_loop_waits_for_nobody_and_dates_requests_by_their_arrival():
    due = {}
    gate = []

    async def ask(number, due_ns):
        due[number] = due_ns
        if not gate:
            gate.append(asyncio.Event())
        if number == 2:
            gate[0].set()
        await gate[0].wait()  # the first ends once the last has come

    asyncio.run(open_loop((0.0, 0.001, 0.003), ask))
    assert (due[1] - due[0], due[2] - due[0]) == (1_000_000, 3_000_000)


def test_arrivals_are_the_same_for_a_seed_and_as_many_a_second_as_asked():
    found = poisson_arrivals(4000, 50.0, seed=3)
    assert found == poisson_arrivals(4000, 50.0, seed=3)
    assert found != poisson_arrivals(4000, 50.0, seed=4)
    assert list(found) == sorted(found)
    gaps = [after - before for before, after in zip((0.0, *found), found, strict=False)]
    assert mean(gaps) == pytest.approx(1 / 50, rel=0.1)
    assert mean(gap > 1 / 50 for gap in gaps) == pytest.approx(0.368, abs=0.04)  # e^-1: exponential
