"""What makes steps faster, and what it leaves of the result: compiled blocks. On the CPU, without a compiler behind."""

import torch

from stages.config import StageTuning
from stages.runners.compiled_blocks import compiled
from tests.unit.stages.models.qwen_image.studio import Asked, Studio


def test_blocks_are_compiled_before_ready_for_every_size_length_and_number_of_rows(tiny_folder, studio):
    before = compiled()
    fast = Studio(tiny_folder, tuning=StageTuning(compile="blocks"))
    assert compiled() - before == 2  # several rows, and one
    asked = [Asked(negative="bad", steps=2), Asked(size=(128, 48), steps=1), Asked(prompt="a longer prompt", steps=3)]
    session = fast.draw(*asked)
    assert [name for step in session.steps for name, _ in step.counters if name == "compiled"] == []
    for drawn, plain in zip(session.drawn.values(), studio.draw(*asked).drawn.values(), strict=True):
        assert torch.equal(drawn.latents, plain.latents)
