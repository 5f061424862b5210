"""`omni trace whatif` of a model on a GPU: another load than the recorded ones is predicted within 15 %."""

import json
from pathlib import Path

import pytest

from omni_cli.plan.devices import visible_devices
from tests.gpu.test_accuracy import FOLDER
from tests.integration.cli import omni

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not len(visible_devices()), reason="needs a GPU")]

MODEL = ("recipe=qwen3_omni", "deploy=qwen3_omni/gpu1", f"model.path={FOLDER}", "model.load_format=dummy")
SIZE = ("--prompt-tokens", "100", "--text-tokens", "32", "--frames", "120", "--requests", "32")
WITHIN = 0.15


def test_a_load_between_the_recorded_ones_is_predicted(tmp_path: Path) -> None:
    within(MODEL, SIZE, tmp_path)


def within(model: tuple[str, ...], size: tuple[str, ...], folder: Path) -> None:
    for arguments in (("2,16", "--out", "recorded"), ("8", "--json", "measured.json")):
        done = omni("bench", "run", *model, *size, "--concurrency", *arguments, cwd=folder)
        assert done.code == 0, done.err
    requests = size[size.index("--requests") + 1]
    done = omni("trace", "whatif", "recorded", "--concurrency", "8", "--requests", requests, "--json", cwd=folder)
    assert done.code == 0, done.err
    (predicted,) = json.loads(done.out)["loads"]
    figures = json.loads((folder / "measured.json").read_text())["levels"][0]["figures"]
    assert predicted["requests_a_second"] == pytest.approx(figures["requests_per_s"]["median"], rel=WITHIN)
    assert predicted["first_ms"]["audio"]["p50"] == pytest.approx(figures["ttfa_ms"]["median"], rel=WITHIN)
    assert predicted["total_ms"]["p50"] == pytest.approx(figures["request_ms"]["median"], rel=WITHIN)
