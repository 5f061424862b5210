"""Weights of embedded checkpoints as the repository holds them, 8 or 4 bits a value, and the way back to the published
layout, made once in omni's cache folder. Torch-free: the planner asks for it.

Every file of a packed folder but its weights is as it is; `packed.safetensors` has every tensor as `FILE:NAME`. An int8
tensor has beside it `FILE:NAME/scale`, float16, one value an entry of its first dimension, which it is multiplied with.
So has a uint8 one, of 4 bits a value, each 8 too large: the low bits are the first half of the entries (the larger one,
if their number is odd), the high bits the others.
A tensor of five dimensions that the metadata's `shapes` (JSON, name to shape) lists has only the last entry of its
third dimension; the others are 0.
"""

import hashlib
import json
import os
import shutil
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from stages.errors import CheckpointError
from stages.models.cache import built_once, cache_root
from stages.models.checkpoint import read_header

PACKED_FILE, SCALE, SHAPES = "packed.safetensors", "/scale", "shapes"
# Raise it when `unpack` makes something else of the same files.
_VERSION = 1


def unpacked(packed: Path, name: str) -> str:
    """The folder of the checkpoint in `packed`, unpacked on first use; another one for other content. `name` begins its
    own. Raises CheckpointError, OSError."""
    read_header(packed / PACKED_FILE)
    digest = hashlib.sha256(bytes([_VERSION]))
    for path in _files(packed):
        with path.open("rb") as file:
            digest.update(f"{path.relative_to(packed)}\n".encode() + hashlib.file_digest(file, "sha256").digest())
    return str(built_once(cache_root(os.environ), f"{name}-{digest.hexdigest()[:12]}", partial(unpack, packed)))


def unpack(packed: Path, folder: Path) -> None:
    """Writes into `folder` (which is there) the checkpoint in `packed`, in float32. Raises CheckpointError, OSError."""
    try:
        weights = _weights(packed / PACKED_FILE)
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{packed / PACKED_FILE}: no packed weights ({error})") from error
    for path in _files(packed):
        if path.name != PACKED_FILE:
            target = folder / path.relative_to(packed)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for name, tensors in weights.items():
        try:
            save_file(tensors, folder / name, metadata={"format": "pt"})
        except SafetensorError as error:  # as which it gives an OSError
            raise CheckpointError(f"{folder / name}: cannot be written ({error})") from error


def _files(packed: Path) -> list[Path]:
    return sorted(path for path in packed.rglob("*") if path.is_file())


def _weights(path: Path) -> dict[str, dict[str, Any]]:
    """Every tensor by file and name."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    with safe_open(path, framework="np") as stored:
        shapes = json.loads((stored.metadata() or {}).get(SHAPES, "{}"))
        for key in sorted(name for name in stored.keys() if not name.endswith(SCALE)):  # noqa: SIM118  it is no dict
            values = stored.get_tensor(key)
            if values.dtype in (np.int8, np.uint8):
                scale = stored.get_tensor(key + SCALE).astype(np.float32)
                if values.dtype == np.uint8:
                    values = np.concatenate([values & 15, values >> 4])[: len(scale)].astype(np.int8) - 8
                values = values * scale.reshape(-1, *[1] * (values.ndim - 1))
            if key in shapes:
                last, values = values, np.zeros(shapes[key], np.float32)
                values[:, :, -1:] = last
            file, _, name = key.partition(":")
            found[file][name] = values.astype(np.float32, copy=False)
    return found
