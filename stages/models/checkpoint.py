"""A checkpoint folder of safetensors: which tensor lies in which file, found and checked by reading headers alone.

Torch-free, so that the planner can refuse a broken folder before anything is spawned. Reads no tensor's values.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
# As transformers and as diffusers call them.
_SINGLE_FILES = (SINGLE_FILE, "diffusion_pytorch_model.safetensors")
# A header larger than this is no header: the limit that the safetensors library itself applies.
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a file's header: `dtype` as safetensors writes it (F32, BF16 ...)."""

    dtype: str
    shape: tuple[int, ...]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the checkpoint. Raises CheckpointError that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors that a safetensors file declares, after checking that the file is as long as they need.

    Layout: 8 bytes little-endian header length, that many bytes of JSON, then the data
    (https://github.com/huggingface/safetensors#format). Raises CheckpointError that names the file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
                raise CheckpointError(f"{path}: truncated or no safetensors file ({size} bytes)")
            header = json.loads(file.read(length))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as safetensors ({error})") from error
    header.pop("__metadata__", None)
    needed = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size != needed:
        raise CheckpointError(f"{path}: truncated, {size} bytes where its header declares {needed}")
    return {name: StoredTensor(dtype=entry["dtype"], shape=tuple(entry["shape"])) for name, entry in header.items()}


def tensor_files(folder: Path) -> dict[str, Path]:
    """Every tensor of a sharded or single-file checkpoint: name -> file. Raises CheckpointError."""
    index = next((path for name in _SINGLE_FILES if (path := folder / f"{name}.index.json").exists()), None)
    if index is not None:
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index}: no weight_map")
        return {name: folder / file for name, file in weight_map.items()}
    single = next((folder / name for name in _SINGLE_FILES if (folder / name).exists()), folder / SINGLE_FILE)
    return dict.fromkeys(read_header(single), single)


def weight_problems(folder: Path) -> tuple[str, ...]:
    """What is wrong with the weights of a folder, a line each that names the file; empty if every header is sound."""
    try:
        files = tensor_files(folder)
    except CheckpointError as error:
        return (str(error),)
    problems = []
    for path in sorted(set(files.values())):
        try:
            declared = read_header(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        absent = sorted(name for name, file in files.items() if file == path and name not in declared)
        if absent:
            problems.append(f"{path}: lacks {len(absent)} tensors that the index names, e.g. {absent[0]}")
    return tuple(problems)
