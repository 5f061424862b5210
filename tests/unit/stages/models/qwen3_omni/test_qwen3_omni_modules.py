"""Each stage's module is loaded alone and exactly, from every layout in which transformers writes a checkpoint."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

from stages.errors import CheckpointError
from stages.models.qwen3_omni import modules

CPU = torch.device("cpu")
STAGES = ("thinker", "talker", "code2wav")


def source(folder: Path, *, dummy: bool = False, dtype: torch.dtype = torch.float32) -> modules.Source:
    return modules.Source(folder=folder, device=CPU, dtype=dtype, dummy=dummy)


@pytest.fixture(scope="module")
def whole(tiny_folder: Path) -> Any:
    return Qwen3OmniMoeForConditionalGeneration.from_pretrained(tiny_folder)


@pytest.fixture(scope="module")
def sharded(whole: Any, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    whole.save_pretrained(folder, max_shard_size="500KB")
    return folder


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("layout", ["published", "sharded"])
def test_equal_to_the_part_of_the_whole_model(
    whole: Any, tiny_folder: Path, sharded: Path, stage: str, layout: str
) -> None:
    folder = tiny_folder if layout == "published" else sharded
    module, held = modules.stage_module(stage, modules.read_config(folder), source(folder))
    expected = {**dict(getattr(whole, stage).named_parameters()), **dict(getattr(whole, stage).named_buffers())}
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
    assert held == sum(p.numel() * 4 for p in module.parameters())


def test_a_stage_reads_its_own_shards_only(sharded: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sharded, tmp_path / "part"))
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    needed = {file for name, file in weight_map.items() if name.startswith("code2wav.")}
    removed = set(weight_map.values()) - needed
    assert removed
    for file in removed:
        (folder / file).unlink()
    config = modules.read_config(folder)
    modules.stage_module("code2wav", config, source(folder))
    with pytest.raises(CheckpointError, match="no such file"):
        modules.stage_module("thinker", config, source(folder))


def test_a_missing_expert_is_named(sharded: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sharded, tmp_path / "part"))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    del index["weight_map"]["talker.model.layers.1.mlp.experts.3.up_proj.weight"]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"missing .*talker\.model\.layers\.1\.mlp\.experts\.gate_up_proj"):
        modules.stage_module("talker", modules.read_config(folder), source(folder))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dummy_fills_every_parameter(tiny_folder: Path, tmp_path: Path, stage: str, dtype: torch.dtype) -> None:
    shutil.copy(tiny_folder / "config.json", tmp_path)
    module, _ = modules.stage_module(stage, modules.read_config(tmp_path), source(tmp_path, dummy=True, dtype=dtype))
    for name, parameter in module.named_parameters():
        assert parameter.dtype == dtype
        assert torch.isfinite(parameter).all(), name
        # Unfilled memory holds zeros, or values near 1e-39.
        assert parameter.ndim == 1 or 1e-3 < parameter.float().abs().max() < 0.2, name


def test_computed_buffers_are_those_of_transformers_in_bfloat16(tiny_folder: Path) -> None:
    whole = Qwen3OmniMoeForConditionalGeneration.from_pretrained(tiny_folder, dtype=torch.bfloat16)
    for stage in STAGES:
        module, _ = modules.stage_module(
            stage, modules.read_config(tiny_folder), source(tiny_folder, dtype=torch.bfloat16)
        )
        for name, buffer in getattr(whole, stage).named_buffers():
            assert torch.equal(module.get_buffer(name), buffer), f"{stage}.{name}"


@pytest.mark.parametrize("dummy", [False, True])
def test_the_embedding_table_is_the_thinker_s(tiny_folder: Path, dummy: bool) -> None:
    config = modules.read_config(tiny_folder)
    table = modules.thinker_embedding(config, source(tiny_folder, dummy=dummy))
    thinker, _ = modules.stage_module("thinker", config, source(tiny_folder, dummy=dummy))
    own = thinker.get_input_embeddings().weight
    assert table.shape == own.shape
    assert dummy or torch.equal(table, own)


def test_another_model_s_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(CheckpointError, match="model_type is 'qwen3'"):
        modules.read_config(tmp_path)
