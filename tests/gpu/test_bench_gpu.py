"""`omni bench` of pictures at the published size, with random weights: that its figures can be true of this GPU."""

import json
from pathlib import Path

import pytest

from omni_cli.plan.devices import visible_devices
from stages.models import qwen_image
from tests.integration.cli import omni

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not len(visible_devices()), reason="needs a GPU")]

PUBLISHED = Path(qwen_image.__file__).parent / "configs" / "20b"
WORDS = (
    *("recipe=qwen_image", f"model.path={PUBLISHED}", "model.load_format=dummy", "request.image.size=512x512"),
    *("request.image.steps=4", "request.image.negative_prompt=red"),
)


@pytest.mark.parametrize("verb", ["run", "compare"])
def test_the_figures_are_those_of_a_gpu(verb: str, tmp_path: Path) -> None:
    done = omni("bench", verb, *WORDS, "--requests", "2", "--json", "b.json", cwd=tmp_path, limit_s=580)
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "b.json").read_text())
    levels = found["levels"] if verb == "run" else list(found["levels"].values())
    for level in levels:
        # 4 steps of 1024 latent tokens each way: 0.03 PFLOP a step; no H200 has 1.5 PFLOP/s
        assert 20 < level["figures"]["tflop_per_s"]["median"] < 1500
    if verb == "run":
        assert 0.03 < levels[0]["figures"]["peak_share"]["median"] <= 1
    else:
        assert found["apart"] is not None
