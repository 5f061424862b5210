"""A packed folder becomes the published layout, once for its content; what is wrong with it is named."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from stages.errors import CheckpointError
from stages.models import packed as reader
from stages.models.packed import PACKED_FILE, unpack, unpacked

STILL = np.arange(8, dtype=np.int8).reshape(2, 2, 1, 1, 2)
TENSORS = {
    "model.safetensors:matrix": np.array([[127, -1], [2, 0]], np.int8),
    "model.safetensors:matrix/scale": np.array([0.5, 2.0], np.float16),
    "model.safetensors:coarse": np.array([[0x0F, 0x81], [0x79, 0x08]], np.uint8),
    "model.safetensors:coarse/scale": np.array([1.0, 0.5, 2.0], np.float16),
    "model.safetensors:bias": np.array([0.25, -3.0], np.float16),
    "vae/weights.safetensors:still": STILL,
    "vae/weights.safetensors:still/scale": np.array([1.0, 2.0], np.float16),
}


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMNI_CACHE", str(tmp_path / "cache"))
    return write(tmp_path / "packed", TENSORS)


def write(folder: Path, tensors: dict) -> Path:
    (folder / "vae").mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}\n")
    (folder / "vae" / "config.json").write_text('{"z": 1}\n')
    shapes = '{"vae/weights.safetensors:still": [2, 2, 3, 1, 2]}'
    save_file(tensors, folder / PACKED_FILE, metadata={"shapes": shapes})
    return folder


def test_values_are_steps_times_their_scale_and_files_are_as_they_were(packed):
    folder = Path(unpacked(packed, "nano"))
    found = load_file(folder / "model.safetensors")
    assert found["matrix"].tolist() == [[63.5, -0.5], [4.0, 0.0]]
    assert found["coarse"].tolist() == [[7, -7], [0.5, 0], [-16, 0]]
    assert found["bias"].tolist() == [0.25, -3.0]
    still = load_file(folder / "vae" / "weights.safetensors")["still"]
    assert still.shape == (2, 2, 3, 1, 2)
    assert not still[:, :, :2].any()
    assert still[1, :, 2].flatten().tolist() == [8, 10, 12, 14]
    assert {values.dtype for values in (*found.values(), still)} == {np.dtype("float32")}
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {"config.json", "model.safetensors", "vae/config.json", "vae/weights.safetensors"}
    assert (folder / "vae" / "config.json").read_text() == '{"z": 1}\n'


def test_other_content_has_another_folder_and_the_same_is_unpacked_once(packed, monkeypatch):
    first = unpacked(packed, "nano")
    (packed / "vae" / "config.json").write_text('{"z": 2}\n')
    second = unpacked(packed, "nano")
    assert first != second
    monkeypatch.setattr(reader, "unpack", lambda *_: pytest.fail("unpacked again"))
    assert unpacked(packed, "nano") == second


def test_unpacking_imports_no_torch(packed):
    code = (
        "import sys; from pathlib import Path; from stages.models.packed import unpacked;"
        "print(unpacked(Path(sys.argv[1]), 'nano'), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(packed)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [unpacked(packed, "nano"), "False"]


def test_weights_that_are_absent_or_cut_are_named_and_nothing_is_left(packed, tmp_path):
    weights = packed / PACKED_FILE
    os.truncate(weights, weights.stat().st_size - 4)
    with pytest.raises(CheckpointError, match=f"{weights}: truncated"):
        unpacked(packed, "nano")
    weights.unlink()
    with pytest.raises(CheckpointError, match=f"{weights}: no such file"):
        unpacked(packed, "nano")
    write(packed, {name: values for name, values in TENSORS.items() if name != "model.safetensors:matrix/scale"})
    with pytest.raises(CheckpointError, match=f"{weights}: no packed weights .*matrix/scale"):
        unpacked(packed, "nano")
    assert list((tmp_path / "cache" / "checkpoints").iterdir()) == []


def test_a_file_that_cannot_be_written_is_named(packed, tmp_path):
    (tmp_path / "full" / "model.safetensors").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"full/model\.safetensors: cannot be written"):
        unpack(packed, tmp_path / "full")
