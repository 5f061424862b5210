"""What a request leaves open comes from the checkpoint, else from transformers' `generate`."""

import inspect
import json
from pathlib import Path

import pytest
from transformers import Qwen3OmniMoeForConditionalGeneration

from stages.models.qwen3_omni.defaults import sampling_defaults
from stages.runners.sampling import SamplingParams


def test_without_a_file_they_are_those_of_generate(tmp_path: Path) -> None:
    arguments = inspect.signature(Qwen3OmniMoeForConditionalGeneration.generate).parameters
    talker = sampling_defaults(tmp_path, "talker")
    assert arguments["talker_do_sample"].default is True
    for name, value in (
        ("talker_max_new_tokens", talker.max_tokens),
        ("talker_temperature", talker.temperature),
        ("talker_top_k", talker.top_k),
        ("talker_top_p", talker.top_p),
        ("talker_repetition_penalty", talker.repetition_penalty),
    ):
        assert arguments[name].default == value, name
    thinker = sampling_defaults(tmp_path, "thinker")
    assert thinker == SamplingParams(max_tokens=arguments["thinker_max_new_tokens"].default)


@pytest.mark.parametrize("stage", ["thinker", "talker"])
def test_the_checkpoint_stands_over_them(tmp_path: Path, stage: str) -> None:
    given = {f"{stage}_max_new_tokens": 7, f"{stage}_temperature": 0.5, f"{stage}_top_p": 0.9, "other_top_k": 3}
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    found = sampling_defaults(tmp_path, stage)
    assert (found.max_tokens, found.temperature, found.top_p) == (7, 0.5, 0.9)
    (tmp_path / "generation_config.json").write_text(json.dumps({**given, f"{stage}_do_sample": False}))
    assert sampling_defaults(tmp_path, stage).temperature == 0
