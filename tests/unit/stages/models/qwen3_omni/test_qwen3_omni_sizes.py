"""The byte formulas against the headers of a checkpoint that transformers has written."""

import math
from pathlib import Path

import pytest

from stages.models.checkpoint import read_header, read_json, tensor_files
from stages.models.qwen3_omni import modules
from stages.models.qwen3_omni.sizes import stage_memory, step_bytes
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


BUNDLED = str(Path(modules.__file__).parent / "configs/30b_a3b")


@pytest.mark.parametrize(
    ("stage", "rows", "ms"),
    [("thinker", 1, 1.44), ("thinker", 8, 6.2), ("thinker", 32, 13.1), ("talker", 1, 0.70), ("talker", 32, 1.73)],
)
def test_the_least_that_a_step_reads_at_published_size(stage, rows, ms):
    """Worked out by hand for an H200 that copies 4.3 TB/s, at 200 tokens of context."""
    assert step_bytes(BUNDLED, stage, "bfloat16", rows, 200) / 4.3e9 == pytest.approx(ms, rel=0.06)


@pytest.mark.parametrize("stage", ["thinker", "talker"])
def test_a_step_reads_each_weight_once_and_the_cache_of_every_row(stage):
    memory = stage_memory(BUNDLED, stage, "bfloat16")
    few, long = (step_bytes(BUNDLED, stage, "bfloat16", 3, context) for context in (10, 110))
    assert long - few == 3 * 100 * memory.kv_token_bytes
    many = [step_bytes(BUNDLED, stage, "bfloat16", 10**rows, 0) for rows in (4, 5)]
    assert many[0] == many[1]  # all experts


def test_a_token_takes_keys_and_values_of_every_layer(folder):
    thinker = stage_memory(str(folder), "thinker", "float32")
    assert thinker.kv_token_bytes == 2 * 4 * 3 * 2 * 16
    assert thinker.context_tokens == 8192
    assert stage_memory(str(folder), "code2wav", "float32").kv_token_bytes == 0
