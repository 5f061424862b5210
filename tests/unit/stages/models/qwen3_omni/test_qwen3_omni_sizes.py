"""The byte formulas against the headers of a checkpoint that transformers has written."""

import math
from pathlib import Path

import pytest

from stages.models.checkpoint import read_header, read_json, tensor_files
from stages.models.qwen3_omni.sizes import stage_memory
from stages.models.qwen3_omni.tiny import tiny_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("omni_cache"))


@pytest.mark.parametrize("stage", ["thinker", "talker", "code2wav"])
def test_weights_are_those_of_the_checkpoint(folder, stage):
    stored = {}
    for path in set(tensor_files(folder).values()):
        stored |= read_header(path)
    weights = sum(math.prod(tensor.shape) for name, tensor in stored.items() if name.startswith(f"{stage}."))
    if stage == "talker":
        config = read_json(folder / "config.json")
        hidden = config["talker_config"]["text_config"]["hidden_size"]
        weights += config["thinker_config"]["text_config"]["vocab_size"] * hidden
    assert stage_memory(str(folder), stage, "float32").weight_bytes == 4 * weights
    assert stage_memory(str(folder), stage, "bfloat16").weight_bytes == 2 * weights


def test_a_token_takes_keys_and_values_of_every_layer(folder):
    thinker = stage_memory(str(folder), "thinker", "float32")
    assert thinker.kv_token_bytes == 2 * 4 * 3 * 2 * 16
    assert thinker.context_tokens == 8192
    assert stage_memory(str(folder), "code2wav", "float32").kv_token_bytes == 0
