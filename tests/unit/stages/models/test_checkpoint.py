"""Reading a checkpoint folder's headers, and naming what is wrong with it."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from stages.errors import CheckpointError
from stages.models.checkpoint import SINGLE_FILE, read_header, tensor_files, weight_problems

INDEX_FILE = f"{SINGLE_FILE}.index.json"


def shard(path: Path, *names: str) -> Path:
    save_file({name: np.ones((2, 3), dtype=np.float32) for name in names}, path)
    return path


def index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_a_single_file(tmp_path: Path) -> None:
    path = shard(tmp_path / SINGLE_FILE, "a", "b")
    assert tensor_files(tmp_path) == {"a": path, "b": path}
    header = read_header(path)
    assert header["a"].shape == (2, 3)
    assert header["a"].dtype == "F32"
    assert weight_problems(tmp_path) == ()


def test_shards_by_their_index(tmp_path: Path) -> None:
    first, second = shard(tmp_path / "one.safetensors", "a"), shard(tmp_path / "two.safetensors", "b")
    index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    assert tensor_files(tmp_path) == {"a": first, "b": second}
    assert weight_problems(tmp_path) == ()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shard(tmp_path / "one.safetensors", "a")
    index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    (problem,) = weight_problems(tmp_path)
    assert "two.safetensors" in problem
    assert "no such file" in problem


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    shard(tmp_path / "one.safetensors", "a")
    index(tmp_path, {"a": "one.safetensors", "b": "one.safetensors"})
    (problem,) = weight_problems(tmp_path)
    assert "one.safetensors" in problem
    assert problem.endswith("e.g. b")


@pytest.mark.parametrize("kept", [0, 4, 8, 20, -1])
def test_a_truncated_file_is_named(tmp_path: Path, kept: int) -> None:
    path = shard(tmp_path / SINGLE_FILE, "a")
    path.write_bytes(path.read_bytes()[:kept])
    (problem,) = weight_problems(tmp_path)
    assert str(path) in problem
    assert "truncated" in problem


def test_what_is_no_safetensors_file_is_named(tmp_path: Path) -> None:
    (tmp_path / SINGLE_FILE).write_bytes(b"<html>" * 100)
    (problem,) = weight_problems(tmp_path)
    assert SINGLE_FILE in problem


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (problem,) = weight_problems(tmp_path)
    assert problem == f"{tmp_path / SINGLE_FILE}: no such file"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {}}'])
def test_a_broken_index_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX_FILE).write_text(content)
    with pytest.raises(CheckpointError, match=INDEX_FILE):
        tensor_files(tmp_path)
