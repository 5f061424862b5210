"""`omni bench overhead` on real processes: that it measures, and leaves what it should. Figures are not judged."""

import json
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_cli.commands.bench import app
from tests.integration.cli import check_trace, leaves_nothing, omni, start

AIMED = {
    "requests_per_s",
    "replay_events_per_s",
    "trace_cost_percent",
    "hop_down_us",
    "hop_up_us",
    "shm_64mib_ratio",
    "server_added_ms",
}


def test_all_overheads_are_measured_in_one_run_and_written_to_a_page(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("# Performance\n\nWhat is known.\n")
    with leaves_nothing():
        done = omni("bench", "overhead", "--quick", "--json", "--write", "performance.md", cwd=tmp_path)
    assert done.code == 0, done.err
    measured = json.loads(done.out)
    figures = measured["figures"]
    assert {key for key, figure in figures.items() if figure["met"] is not None} == AIMED
    for key in (
        "requests_per_s",
        "cpu_us_per_request",
        "replay_events_per_s",
        "first_engine_ms",
        "first_server_ms",
        "hop_down_us",
        "hop_up_us",
        "shm_64mib_ms",
    ):
        assert min(figures[key]["samples"]) > 0, key
    assert len(figures["hop_up_us"]["samples"]) == len(figures["hop_down_us"]["samples"]) == 200
    # a memcpy of 64 MiB takes milliseconds; a transfer that copied less would show
    assert figures["shm_64mib_ratio"]["median"] > 0.3
    assert measured["machine"]["cores"]

    planned = omni(
        *("plan", "--json", "recipe=synthetic", "synthetic.frames=8"),
        *(f"deploy.stages.{stage}.max_batch=32" for stage in ("thinker", "talker", "code2wav")),
        cwd=tmp_path,
    )
    assert json.loads(planned.out)["digest"] == measured["plan_digest"]

    text = page.read_text()
    assert text.startswith("# Performance\n\nWhat is known.\n\n<!-- omni bench overhead: begin -->\n")
    assert "`omni bench overhead --quick`" in text
    for figure in figures.values():
        assert f"| {figure['title']} | " in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["performance.md"]


@pytest.mark.parametrize(
    ("verb", "until"),
    [
        (("overhead", "--quick"), "first events"),
        (("run", "recipe=synthetic", "synthetic.delay_ms.talker=1000", "--frames", "1"), "1 at once: 8 requests"),
    ],
)
def test_an_interrupted_benchmark_leaves_nothing(verb: tuple[str, ...], until: str, tmp_path: Path) -> None:
    with leaves_nothing():
        bench = start("bench", *verb, cwd=tmp_path)
        assert bench.stderr is not None
        for line in bench.stderr:
            if line.startswith(until):
                break
        bench.send_signal(signal.SIGINT)
        out, err = bench.communicate(timeout=60)
    assert bench.returncode == 130
    assert "Traceback" not in err
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ([] if verb[0] == "overhead" else ["outputs"])


def test_loads_of_both_kinds_are_measured_in_one_deployment(tmp_path: Path) -> None:
    words = ("recipe=synthetic", "synthetic.delay_ms.talker=1")
    loads = ("--concurrency", "1,4", "--rate", "200", "--requests", "6")
    size = ("--prompt-tokens", "20", "--text-tokens", "5", "--frames", "9")
    with leaves_nothing():
        done = omni("bench", "run", *words, *loads, *size, "--json", "b.json", "--write", "page.md", cwd=tmp_path)
    assert done.code == 0, done.err
    check_trace(done.run)
    starts = [event for event in done.events if event["kind"] == "process_started"]
    assert len(starts) == 3  # one deployment for all loads
    measured = json.loads((tmp_path / "b.json").read_text())
    assert measured == json.loads((done.run / "bench.json").read_text())
    assert measured["plan_digest"] == json.loads((done.run / "plan.json").read_text())["digest"]
    assert (done.run / "bench.svg").read_text().startswith("<svg ")
    assert [(level["done"], level["failed"]) for level in measured["levels"]] == [(6, [])] * 3
    for level in measured["levels"]:
        figures = {key: figure["samples"] for key, figure in level["figures"].items()}
        assert figures["prompt_tokens"] == [20] * 6
        assert figures["audio_s"] == [9 * 1920 / 24_000] * 6
        assert len(figures["ttft_ms"]) == len(figures["ttfa_ms"]) == len(figures["rtf"]) == 6
        assert min(figures["talker_frame_ms"]) >= 1  # what the delay makes of it
        assert 0 < figures["talker_busy"][0] <= 1
    admitted = [event for event in done.events if event["kind"] == "request_admitted"]
    assert len(admitted) == 3 * 6 + 1 + 4 + 6  # the warm-ups are made, and counted nowhere
    page = (tmp_path / "page.md").read_text()
    assert "<!-- omni bench run synthetic auto: begin -->" in page
    repeats = f"omni bench run {' '.join((*words, *loads, *size))} --seed 0"
    assert f"`{repeats}`" in page
    assert repeats == measured["command"]
    assert "| 200 a second | 6 | 0 |" in page


def test_text_alone_and_a_request_that_fails_is_named_and_fails_the_command(tmp_path: Path) -> None:
    words = ("recipe=synthetic", "synthetic.fail.stage=thinker", "synthetic.fail.at=3", "synthetic.fail.times=3")
    with leaves_nothing():
        done = omni("bench", "run", *words, "--text-only", "--requests", "4", cwd=tmp_path)
    assert done.code == 1
    assert "asks for text: 64 text tokens; end tokens ignored" in done.out
    (level,) = json.loads((done.run / "bench.json").read_text())["levels"]
    assert level["warm_up_failed"] == 1
    assert (level["done"], len(level["failed"])) == (2, 2)
    assert "thinker" in level["failed"][0]["error"]
    assert "1 at once: 1 of the warm-up failed" in done.err
    assert level["failed"][1]["error"] in done.err
    assert (
        len(level["figures"]["thinker_token_ms"]["samples"]) == len(level["figures"]["prompt_tokens"]["samples"]) == 2
    )
    assert list(level["steps"]) == ["thinker"]
    assert {"ttfa_ms", "rtf", "xrt"} & set(level["figures"]) == set()


@pytest.mark.parametrize("stage", ["talker", "code2wav"])
def test_a_stage_is_measured_alone_in_full_batches(stage: str, tmp_path: Path) -> None:
    chunks = {"first_chunk_frames": 2, "chunk_frames": 5}
    words = (
        "recipe=qwen3_omni",
        "model.path=tiny",
        *(f"deploy.stages.code2wav.{key}={frames}" for key, frames in chunks.items()),
    )
    given = ("--bandwidth", "20") if stage == "code2wav" else ()
    options = ("--stage", stage, "--batch", "1,3", "--context", "40", "--steps", "4", *given)
    with leaves_nothing():
        done = omni("bench", "stage", *words, *options, "--json", "s.json", "--write", "page.md", cwd=tmp_path)
    assert done.code == 0, done.err
    measured = json.loads((tmp_path / "s.json").read_text())
    figures = measured["figures"]
    for batch in (1, 3):
        assert len(figures[f"batch_{batch}_step_ms"]["samples"]) == 4
        assert min(figures[f"batch_{batch}_step_ms"]["samples"]) > 0
        assert figures[f"batch_{batch}_prefill_ms"]["median"] > 0
        assert figures[f"batch_{batch}_floor_ms"]["median"] > 0
    if stage == "talker":  # bandwidth measured here, between a slow disk's and a GPU's; three rows choose more experts
        assert 0.5 < float(measured["machine"]["bandwidth"].split()[0]) < 10_000
        assert figures["batch_3_floor_ms"]["median"] > figures["batch_1_floor_ms"]["median"]
    else:
        assert measured["machine"]["bandwidth"] == "20 GB/s"
        header, _, row = (line.split() for line in done.out.splitlines()[:3])
        assert row[header[::-1].index("frames_computed") * -1 - 1] == "60"  # 4 steps of 3 requests, 5 frames each
    page = (tmp_path / "page.md").read_text()
    assert f"<!-- omni bench stage qwen3_omni auto {stage}: begin -->" in page
    assert f"`omni bench stage {' '.join((*words, *options))} --seed 0`" in page


def test_omni_and_generate_give_the_same_answers_to_the_same_requests(tmp_path: Path) -> None:
    size = ("--requests", "2", "--prompt-tokens", "30", "--text-tokens", "5", "--frames", "7")
    words = (
        "recipe=qwen3_omni",
        "model.path=tiny",
        "--concurrency",
        "2",
        *size,
        "--json",
        "c.json",
        "--write",
        "page.md",
    )
    with leaves_nothing():
        done = omni("bench", "compare", *words, cwd=tmp_path)
    assert done.code == 0, done.err
    compared = json.loads((tmp_path / "c.json").read_text())
    assert (compared["agreed"], compared["compared"]) == (4, 4)
    assert "Ids and codes of 4 of 4 answers" in done.out
    sides = ["omni, 1 at once", "omni, 2 at once", "transformers, as shipped", "transformers, grouped_mm"]
    assert list(compared["levels"]) == sides
    for level in compared["levels"].values():
        figures = {key: figure["samples"] for key, figure in level["figures"].items()}
        assert (level["done"], level["failed"]) == (2, [])
        assert figures["prompt_tokens"] == [30, 30]
        assert min(figures["ttft_ms"]) > 0
        assert [len(figures[key]) for key in ("thinker_token_ms", "talker_frame_ms", "ttfa_ms", "rtf")] == [2] * 4
    rates = [compared["levels"][side]["figures"]["requests_per_s"]["median"] for side in sides[:3]]
    printed = [compared["times_better"][f"{side} / {sides[2]}"]["requests/s"] for side in sides[:2]]
    assert printed == [f"{rate / rates[2]:.{2 if rate / rates[2] < 10 else 1}f} x" for rate in rates[:2]]
    assert "<!-- omni bench compare qwen3_omni auto: begin -->" in (tmp_path / "page.md").read_text()


DRAW = ("recipe=qwen_image", "model.path=tiny", "request.image.size=64x32", "request.image.steps=3")


@pytest.fixture
def here(tmp_path: Path, warm: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def drawn(*words: str) -> str:
    """What `omni bench` prints, run in this process, whose stages have imported everything."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_pictures_are_measured_by_image_by_step_and_by_operation(here: Path) -> None:
    loads = ("--concurrency", "1,2", "--requests", "2", "--prompt-tokens", "60")
    drawn("run", *DRAW, *loads, "--peak", "1", "--write", "page.md", "--out", "run")
    check_trace(here / "run")
    measured = json.loads((here / "run" / "bench.json").read_text())
    for level in measured["levels"]:
        figures = {key: figure["samples"] for key, figure in level["figures"].items()}
        assert len(figures["image_s"]) == len(figures["join_ms"]) == len(figures["join_steps"]) == 2
        assert level["counters"]["painter_denoise"]["forward_rows"] == 2 * 3
        assert figures["steps_per_s"][0] == pytest.approx(3 * figures["requests_per_s"][0])
        assert figures["tflop_per_s"][0] == pytest.approx(figures["peak_share"][0])
        assert 0 < figures["peak_share"][0] < 1
    page = (here / "page.md").read_text()
    assert "60 prompt tokens and asks for image: 64x32, 3 steps, no guidance" in page
    assert f"`omni bench run {' '.join((*DRAW, *loads))} --peak 1 --seed 0`" in page


def test_omni_and_diffusers_draw_the_same_pictures(here: Path) -> None:
    guided = ("request.image.negative_prompt=red", "--concurrency", "2", "--requests", "2", "--json", "c.json")
    printed = drawn("compare", *DRAW, *guided)
    compared = json.loads((here / "c.json").read_text())
    assert (compared["agreed"], compared["compared"]) == (4, 4)
    assert compared["apart"] <= 1
    assert f"is {compared['apart']} of 255, in 4 pictures" in printed
    assert list(compared["levels"]) == ["omni, 1 at once", "omni, 2 at once", "diffusers, as shipped"]
    for level in compared["levels"].values():
        figures = {key: figure["samples"] for key, figure in level["figures"].items()}
        assert (level["done"], level["failed"]) == (2, [])
        assert len(figures["image_s"]) == len(figures["painter_denoise_denoising_step_ms"]) == 2


def test_a_first_stage_of_any_family_is_measured_alone(here: Path) -> None:
    options = ("--stage", "painter", "--batch", "2", "--steps", "3", "--peak", "1", "--json", "s.json")
    drawn("stage", *DRAW, *options)
    figures = json.loads((here / "s.json").read_text())["figures"]
    assert len(figures["batch_2_step_ms"]["samples"]) == len(figures["batch_2_gap_ms"]["samples"]) + 1 == 3
    # 1 TFLOP/s is 1 ms for 10^9 FLOP
    flop = 1e9 * figures["batch_2_floor_ms"]["median"]
    rate = figures["batch_2_tflop_per_s"]["samples"][0]
    assert rate == pytest.approx(flop / figures["batch_2_step_ms"]["samples"][0] / 1e9)
