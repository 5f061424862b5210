"""`omni bench overhead` on real processes: that it measures, and leaves what it should. Figures are not judged."""

import json
import signal
from pathlib import Path

from tests.integration.cli import leaves_nothing, omni, start

AIMED = {"requests_per_s", "trace_cost_percent", "hop_down_us", "hop_up_us", "shm_64mib_ratio"}


def test_all_overheads_are_measured_in_one_run_and_written_to_a_page(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("# Performance\n\nWhat is known.\n")
    with leaves_nothing():
        done = omni("bench", "overhead", "--quick", "--json", "--write", "performance.md", cwd=tmp_path)
    assert done.code == 0, done.err
    measured = json.loads(done.out)
    figures = measured["figures"]
    assert {key for key, figure in figures.items() if figure["met"] is not None} == AIMED
    for key in ("requests_per_s", "cpu_us_per_request", "hop_down_us", "hop_up_us", "shm_64mib_ms"):
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
    assert "`omni bench overhead --quick --write performance.md`" in text
    for figure in figures.values():
        assert f"| {figure['title']} | " in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["performance.md"]


def test_an_interrupted_benchmark_leaves_nothing(tmp_path: Path) -> None:
    with leaves_nothing():
        bench = start("bench", "overhead", cwd=tmp_path)
        assert bench.stderr is not None
        for line in bench.stderr:
            if line.startswith("requests: pair 1 "):
                break
        bench.send_signal(signal.SIGINT)
        out, err = bench.communicate(timeout=60)
    assert bench.returncode == 130
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []
