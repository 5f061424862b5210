import json
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean, median

import pytest
from typer.testing import CliRunner

from omni_cli.commands.trace import app
from omni_cli.config.load import load_config
from omni_cli.errors import ConfigError, TraceError
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory
from omni_cli.quantile import quantile
from omni_cli.runtime.events import RequestAdmitted, StageSubmitted
from omni_cli.trace.codec import TraceEvent, encode
from omni_cli.trace.step_model import StepModel
from omni_cli.trace.summary import summarise
from omni_cli.trace.whatif import Demand, Outcome, simulate
from omni_cli.trace.whatif_plan import changed_plan
from omni_cli.trace.whatif_report import NOT_MODELLED, beyond, rate, row
from omni_cli.trace.whatif_report import recorded as of_run
from omni_cli.trace.whatif_workload import StageWork, Work, Workload, read_workload
from stages.events import StageFinished, StepDone
from stages.schedulers.base import Row
from tests.trace.virtual_run import VirtualRun

PAGE = Path(__file__).parents[4] / "docs" / "traces.md"
DELAYS = ("synthetic.delay_ms.thinker=5", "synthetic.delay_ms.talker=5", "synthetic.delay_ms.code2wav=10")
MODES = {
    "complete": (),
    "incremental": (
        "pipeline.stages.talker.inputs.thinker=incremental",
        "pipeline.stages.code2wav.inputs.talker=incremental",
    ),
}
RECORDED = ("deploy.stages.talker.max_batch=4", "deploy.stages.talker.kv_blocks=64")
REQUESTS = 36


def words(number: int) -> int:
    return 3 + number % 6


def run(mode: str, *changes: str, callers: int, requests: int = REQUESTS) -> VirtualRun:
    keys = {change.partition("=")[0] for change in changes}
    kept = [word for word in RECORDED if word.partition("=")[0] not in keys]
    return VirtualRun(*DELAYS, *MODES[mode], *kept, *changes, callers=callers, requests=requests, words=words)


@pytest.fixture(scope="module")
def recorded() -> dict[str, tuple[VirtualRun, Workload]]:
    runs = {mode: run(mode, callers=6, requests=24) for mode in MODES}
    return {mode: (made, read_workload(made.trace, summarise(made.trace))) for mode, made in runs.items()}


def measured(real: VirtualRun) -> Outcome:
    summary = summarise(real.trace)
    assert {request.status for request in summary.requests.values()} == {"finished"}
    return of_run(summary)


def p99(samples: list[int]) -> int:
    return quantile(sorted(samples), 0.99)


@pytest.mark.parametrize(
    ("mode", "callers", "changes"),
    [
        ("complete", 1, ()),
        ("complete", 16, ()),
        ("complete", 12, ("deploy.stages.talker.kv_blocks=4",)),
        ("complete", 12, ("deploy.stages.talker.devices=[[],[]]",)),
        ("incremental", 16, ()),
        ("incremental", 6, ("deploy.stages.talker.max_batch=1",)),
        ("incremental", 16, ("deploy.stages.talker.max_batch=8",)),
        ("incremental", 12, ("deploy.stages.talker.devices=[[],[]]",)),
    ],
    ids=str,
)
def test_another_load_or_deployment_than_the_recorded_one_is_predicted(recorded, mode, callers, changes):
    """Of a deployment without noise: the real one, in virtual time."""
    made, workload = recorded[mode]
    predicted = simulate(changed_plan(made.plan, changes), workload, Demand.of_callers(callers, REQUESTS))
    real = measured(run(mode, *changes, callers=callers))
    assert len(predicted.total_ns) == REQUESTS
    assert rate(predicted) == pytest.approx(rate(real), rel=0.05)
    for samples, of in ((predicted.total_ns, real.total_ns), (predicted.first_ns["audio"], real.first_ns["audio"])):
        assert mean(samples) == pytest.approx(mean(of), rel=0.05)
        assert p99(samples) == pytest.approx(p99(of), rel=0.10)


def test_a_request_whose_admission_is_lost_is_left_out(recorded):
    made, workload = recorded["complete"]
    lost = next(line for line in made.trace if isinstance(line.event, RequestAdmitted))
    rest = [line for line in made.trace if line is not lost]
    assert len(read_workload(rest, summarise(rest)).requests) == len(workload.requests) - 1


def test_arrivals_at_a_rate_wait_for_nobody(recorded):
    made, workload = recorded["complete"]
    few, many = (simulate(made.plan, workload, Demand.of_rate(per_s, 200, seed=1)) for per_s in (10, 400))
    assert rate(few) == pytest.approx(10, rel=0.2)
    assert rate(many) < 60
    assert median(many.total_ns) > 10 * median(few.total_ns)
    assert many.stages["talker"].wait_ns > 100 * few.stages["talker"].wait_ns


def test_requests_that_outgrow_the_kv_cache_leave_every_stage():
    """The thinker is still at it when the talker refuses; who fits and comes later is not held up."""
    made = VirtualRun(
        *MODES["incremental"], "synthetic.delay_ms.thinker=9", "deploy.stages.talker.kv_blocks=64",
        callers=2, requests=8, words=lambda number: 60 if number % 2 else 3,
    )  # fmt: skip
    workload = read_workload(made.trace, summarise(made.trace))
    for blocks in (1, 2, 3):
        plan = changed_plan(made.plan, (f"deploy.stages.talker.kv_blocks={blocks}",))
        outcome = simulate(plan, workload, Demand.of_callers(3, 16))
        assert (outcome.refused, len(outcome.total_ns)) == (8, 8)


def test_times_are_summed_up_as_a_bench_does():
    outcome = Outcome(demand=Demand(name="", requests=100), total_ns=[n * 1_000_000 for n in range(100, 0, -1)])
    assert row(outcome)[-1] == "50.5 99.0"


def test_no_message_overtakes_another(recorded):
    made, workload = recorded["incremental"]
    uneven = replace(workload, hand_off_ns=dict.fromkeys(workload.hand_off_ns, (0, 1_000_000, 30_000_000)))
    assert len(simulate(made.plan, uneven, Demand.of_callers(8, 24)).total_ns) == 24


def test_pictures_are_drawn_step_by_step():
    plan = build_plan(
        load_config(("recipe=qwen_image", "model.path=tiny", "model.load_format=dummy")), Inventory.imagined(1)
    )
    (stage,) = plan.stages
    steps = [("denoise", (rows, 0, 0, 0), rows * 1_000_000) for rows in (1, 2, 3, 4)] * 5
    others = [(kind, (1, 0, 0, 0), 1000) for kind in ("encode", "decode")] * 8
    work = Work(admitted_ns=0, stages={stage.name: StageWork(inputs=(), units=10, outputs={"image"})})
    workload = Workload(
        requests=[work], models={stage.name: StepModel(stage.name, steps + others)},
        hand_off_ns={}, pause_ns={}, entry_ns=[], output_ns=[],
    )  # fmt: skip
    outcome = simulate(plan, workload, Demand.of_callers(2, 4))
    assert len(outcome.total_ns) == 4
    assert outcome.span_ns == pytest.approx(40_000_000, rel=0.01)


def test_a_fit_finds_the_price_of_rows_and_context_under_outliers():
    draw = Random(0)
    steps = []
    for _ in range(400):
        rows, context = draw.randint(1, 8), draw.randint(100, 4000)
        ns = 5_000_000 + 200_000 * rows + 100 * context
        steps.append(
            (
                "decode",
                (rows, 0, 0, context),
                round(ns * draw.uniform(0.97, 1.03)) * (10 if draw.random() < 0.05 else 1),
            )
        )
    (fit,) = StepModel("talker", steps).all
    assert fit.constant_ns == pytest.approx(5_000_000, rel=0.05)
    assert fit.prices_ns[0] == pytest.approx(200_000, rel=0.05)
    assert fit.prices_ns[3] == pytest.approx(100, rel=0.1)
    assert fit.error < 0.03
    assert fit.most_rows == 8


def test_more_work_never_takes_less_time():
    steps = [("forward", (rows, 0, rows * 3, 0), 9_000_000 - rows) for rows in (1, 2, 3, 4)] * 4
    model = StepModel("code2wav", steps)
    assert model.all[0].prices_ns == (0, 0, 0, 0)
    row = Row(uid=1, phase="forward", position=0, units=3)
    assert model.draw_ns((row,) * 9, Random(0)) == pytest.approx(9_000_000, rel=0.01)
    assert model.most_rows == 9


def test_a_kind_of_step_that_is_rare_is_taken_with_the_others():
    steps = [("decode", (1, 0, 0, place), 5_000_000) for place in range(20)]
    model = StepModel("talker", [*steps, ("prefill", (1, 9, 0, 9), 6_000_000)])
    assert [fit.kind for fit in model.all] == ["decode", "any"]
    model.draw_ns((Row(uid=1, phase="prefill", position=0, units=0, tokens=9),), Random(0))
    assert list(beyond({"talker": model})) == []
    model.draw_ns((Row(uid=1, phase="encode", position=0, units=0),), Random(0))
    said = "talker: the trace has no encode step; one takes what the line of any says"
    assert list(beyond({"talker": model})) == [said]
    with pytest.raises(TraceError, match="stage talker has 7 steps in the trace, too few"):
        StepModel("talker", steps[:7])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("deploy.stages.talker.max_batches=8", "the nearest is `deploy.stages.talker.max_batch`"),
        ("deploy.stages.singer.max_batch=8", "cannot be changed in a recorded run"),
        ("deploy.stages.talker.max_batch=0", "greater than or equal to 1"),
        ("deploy.stages.talker.replicas=0", "greater than or equal to 1"),
        ("deploy.stages.talker.replicas=null", "leaves it to the planner"),
        ("deploy.stages.talker.max_batch=null", "leaves it to the planner"),
        ("deploy.stages.talker.replicas=3 deploy.stages.talker.devices=[[],[]]", "lists 2 replicas"),
        ("deploy.stages.talker.step_tokens=1", "less than max_batch=4"),
        ("deploy.stages.code2wav.step_tokens=3", "has no effect"),
        ("deploy.stages.code2wav.kv_blocks=3", "has no effect"),
        ("deploy.stages.thinker.kv_blocks=3", "has no KV cache in the recorded run"),
        ("recipe=synthetic_dag", "cannot be changed in a recorded run"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_what_can(recorded, word, message):
    with pytest.raises(ConfigError) as error:
        changed_plan(recorded["complete"][0].plan, word.split())
    assert message in str(error.value)


def test_the_keys_change_the_plan(recorded):
    words = ("replicas=3", "max_batch=16", "kv_blocks=5", "step_tokens=32")
    plan = changed_plan(recorded["complete"][0].plan, [f"deploy.stages.talker.{word}" for word in words])
    talker = plan.stage("talker")
    found = (len(talker.replicas), talker.max_batch, talker.kv and talker.kv.blocks, talker.tuning.step_tokens)
    assert found == (3, 16, 5, 32)


def endless(trace: list[TraceEvent], alike: bool) -> list[TraceEvent]:
    """The thinker's first request has made so many tokens that nobody lives to see them; `alike`: by its last step as
    by its end."""
    end = next(x.event for x in trace if isinstance(x.event, StageFinished) and x.source == "thinker.0")
    own = [x.event for x in trace if isinstance(x.event, StepDone) and x.source == "thinker.0"]
    last = [step for step in own if end.uid in {row.uid for row in step.rows}][-1]
    rows = tuple(replace(row, units=1 << 62) if row.uid == end.uid else row for row in last.rows)
    edited = {id(end): replace(end, units=end.units - 1 + (1 << 62))}
    if alike:
        edited[id(last)] = replace(last, rows=rows)
    return [replace(x, event=edited.get(id(x.event), x.event)) for x in trace]


def test_the_command_says_what_it_fits_predicts_and_leaves_out(recorded, tmp_path):
    made = recorded["complete"][0]
    lines = (encode(line.source, line.ordinal, line.event) for line in made.trace)
    (tmp_path / "trace.jsonl").write_text("".join(lines))
    (tmp_path / "plan.json").write_text(json.dumps(made.plan.document()))

    def whatif(*arguments: str) -> str:
        done = CliRunner().invoke(app, ("whatif", str(tmp_path), *arguments), catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout

    text = whatif("deploy.stages.talker.max_batch=1", "--concurrency", "1,12")
    for said in ("talker decode: 5 ms + 0.1 ms a row", "the same, simulated", "not modelled: GPUs",
                 "1 at once: nobody waits long", "requests wait for a slot in talker on average"):  # fmt: skip
        assert said in text
    found = json.loads(whatif("--json", "--rate", "5", "--requests", "20"))
    assert found["loads"][0]["requests"] == 20
    assert found["loads"][0]["requests_a_second"] == pytest.approx(5, rel=0.5)
    refused = CliRunner().invoke(app, ("whatif", str(tmp_path), "--requests", "20"))
    assert (refused.exit_code, "give --concurrency or --rate" in refused.stderr) == (2, True)
    assert found["notes"][-1] == NOT_MODELLED
    assert NOT_MODELLED.removeprefix("not modelled: ") in " ".join(PAGE.read_text().split())
    assert json.loads(whatif("--json"))["loads"][0]["load"] == "as recorded"
    late = [x for x in made.trace if not (isinstance(x.event, StageSubmitted) and x.event.stage == "talker")]
    (tmp_path / "trace.jsonl").write_text("".join(encode(x.source, x.ordinal, x.event) for x in late))
    with pytest.raises(TraceError, match=r"trace\.jsonl:\d+: request 1 was"):
        whatif()
    for alike, said in ((True, r"thinker\.0 did 4611686018427387904 units in a"), (False, "thinker finished with")):
        edited = endless(made.trace, alike)
        (tmp_path / "trace.jsonl").write_text("".join(encode(x.source, x.ordinal, x.event) for x in edited))
        with pytest.raises(TraceError, match=rf"trace\.jsonl:\d+: .*ValueError: {said}"):
            whatif()
    (tmp_path / "trace.jsonl").write_text("".join(encode(x.source, x.ordinal, x.event) for x in made.trace[:30]))
    with pytest.raises(TraceError, match="no request has finished"):
        whatif()
