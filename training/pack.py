"""A checkpoint folder of published layout, made small enough for the repository: weights of 8 bits in one file;
and the way back.

Every file of the folder but its weights is as it is; `packed.safetensors` has every tensor as `FILE:NAME`. An int8
tensor has beside it `FILE:NAME/scale`, float16, one value an entry of its first dimension, which it is multiplied with.
A tensor of five dimensions that the metadata's `shapes` (JSON, name to shape) lists has only the last entry of its
third dimension; the others are 0.
"""

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

_WEIGHTS, _SCALE, _SHAPES = "packed.safetensors", "/scale", "shapes"
_SMALL = 2048  # values; what has fewer stays float16


def pack(folder: Path, packed: Path) -> int:
    """Writes `packed` from `folder` and gives its size in bytes. Values of matrices and filters become int8, with one
    float16 scale an output channel (the largest magnitude is 127); the others float16."""
    tensors: dict[str, Any] = {}
    shapes: dict[str, list[int]] = {}
    packed.mkdir(parents=True, exist_ok=True)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder)
        if path.suffix != ".safetensors":
            (packed / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, packed / name)
            continue
        for key, values in load_file(path).items():
            tensors |= _packed(f"{name}:{key}", values.float(), shapes)
    save_file(tensors, packed / _WEIGHTS, metadata={_SHAPES: json.dumps(shapes)})
    return sum(path.stat().st_size for path in packed.rglob("*") if path.is_file())


def _packed(key: str, values: Any, shapes: dict[str, list[int]]) -> dict[str, Any]:
    if values.ndim < 2 or values.numel() < _SMALL:
        return {key: values.half()}
    if values.ndim == 5 and not values[:, :, :-1].any():  # a filter over time that only ever sees a still
        shapes[key] = list(values.shape)
        values = values[:, :, -1:].contiguous()
    rows = values.flatten(1)
    scale = (rows.abs().amax(1) / 127).clamp(min=1e-6).half()
    steps = (rows / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
    return {key: steps.view(values.shape), key + _SCALE: scale}


def unpack(packed: Path, folder: Path) -> None:
    """Writes into `folder` (which is there) the checkpoint in `packed`, in float32. Raises OSError."""
    files: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    with safe_open(packed / _WEIGHTS, framework="pt") as stored:
        shapes = json.loads((stored.metadata() or {}).get(_SHAPES, "{}"))
        names = set(stored.keys())
        for key in sorted(name for name in names if not name.endswith(_SCALE)):
            values = stored.get_tensor(key).float()
            if key + _SCALE in names:
                values *= stored.get_tensor(key + _SCALE).float().reshape(-1, *[1] * (values.ndim - 1))
            if key in shapes:
                whole = torch.zeros(shapes[key])
                whole[:, :, -1:] = values
                values = whole
            file, _, name = key.partition(":")
            files[file][name] = values
    for path in packed.rglob("*"):
        if path.is_file() and path.name != _WEIGHTS:
            target = folder / path.relative_to(packed)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for file, tensors in files.items():
        save_file(tensors, folder / file, metadata={"format": "pt"})
