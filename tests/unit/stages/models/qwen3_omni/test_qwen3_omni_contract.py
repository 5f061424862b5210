"""The family's contract: what it declares, and how a broken checkpoint folder is refused without loading it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.models.qwen3_omni.contract import CONTRACTS, check_model, edge_bytes, voices

CONTRACT = CONTRACTS["qwen3_omni"]


@pytest.fixture
def copy(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "checkpoint"))


def test_three_stages_and_two_outputs() -> None:
    assert {name: stage.execution_type for name, stage in CONTRACT.stages.items()} == {
        "thinker": "llm_ar",
        "talker": "llm_ar",
        "code2wav": "llm_generation",
    }
    assert {output: name for name, stage in CONTRACT.stages.items() for output in stage.outputs} == {
        "text": "thinker",
        "audio": "code2wav",
    }


def test_how_edges_may_be_fed() -> None:
    modes = {
        (producer, name): contract.modes
        for name, stage in CONTRACT.stages.items()
        for producer, contract in stage.inputs.items()
    }
    either = ("incremental", "complete")
    assert modes == {("thinker", "talker"): either, ("talker", "code2wav"): either}


def test_importing_it_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from stages.models.registry import contract; contract('qwen3_omni');"
        "print(sorted({'torch', 'transformers', 'tokenizers', 'pydantic'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_sound_folder_has_no_problems(tiny_folder: Path) -> None:
    assert check_model(str(tiny_folder), "auto") == ()


def test_an_absent_folder(tmp_path: Path) -> None:
    (problem,) = check_model(str(tmp_path / "nowhere"), "auto")
    assert str(tmp_path / "nowhere") in problem


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    (problem,) = check_model(str(copy), "auto")
    assert str(copy / name) in problem


def test_every_missing_file_is_named_at_once(copy: Path) -> None:
    for name in ("config.json", "tokenizer.json", "preprocessor_config.json", "processor_config.json"):
        (copy / name).unlink()
    problems = "\n".join(check_model(str(copy), "auto"))
    assert all(name in problems for name in ("config.json", "tokenizer.json", "preprocessor_config.json"))


def test_truncated_weights(copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    (problem,) = check_model(str(copy), "auto")
    assert "model.safetensors" in problem
    assert "truncated" in problem


@pytest.mark.parametrize("content", ["", "[]", '{"model_type": "qwen2"}', '{"model_type": "qwen3_omni_moe"}'])
def test_another_model_s_configuration(copy: Path, content: str) -> None:
    (copy / "config.json").write_text(content)
    problems = check_model(str(copy), "auto")
    assert problems
    assert all("config.json" in problem for problem in problems)


def test_dummy_needs_a_configuration_alone(tiny_folder: Path, tmp_path: Path) -> None:
    (problem,) = check_model(str(tmp_path), "dummy")
    assert "config.json" in problem
    shutil.copy(tiny_folder / "config.json", tmp_path)
    assert check_model(str(tmp_path), "dummy") == ()


def test_speakers_come_from_the_configuration(tiny_folder: Path) -> None:
    assert voices(str(tiny_folder)) == ("ethan", "chelsie", "aiden")


def test_sizes_follow_the_configuration(copy: Path) -> None:
    before = edge_bytes(str(copy), "thinker", "talker"), edge_bytes(str(copy), "talker", "code2wav")
    config = json.loads((copy / "config.json").read_text())
    config["thinker_config"]["text_config"]["hidden_size"] *= 2
    config["talker_config"]["num_code_groups"] *= 2
    (copy / "config.json").write_text(json.dumps(config))
    assert edge_bytes(str(copy), "thinker", "talker") > before[0]
    assert edge_bytes(str(copy), "talker", "code2wav") == 2 * before[1]
    assert edge_bytes(str(copy), "code2wav", "request") >= 300 * 1920 * 4
