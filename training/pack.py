"""A checkpoint folder of published layout, made small enough for the repository: weights of 8 or 4 bits in one file, as
`stages.models.packed` reads them."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from stages.models.packed import PACKED_FILE, SCALE, SHAPES

_SMALL = 2048  # values; what has fewer stays float16


def pack(folder: Path, packed: Path, coarse: Collection[str] = ()) -> int:
    """Writes `packed` from `folder` and gives its size in bytes. Matrices and filters get 8 bits a value, in the files
    `coarse` 4, with one float16 scale an output channel (the largest magnitude is 127, or 7); the others float16."""
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
            tensors |= _packed(f"{name}:{key}", values.float(), shapes, 7 if str(name) in coarse else 127)
    save_file(tensors, packed / PACKED_FILE, metadata={SHAPES: json.dumps(shapes)})
    return sum(path.stat().st_size for path in packed.rglob("*") if path.is_file())


def _packed(key: str, values: Any, shapes: dict[str, list[int]], most: int) -> dict[str, Any]:
    if values.ndim < 2 or values.numel() < _SMALL:
        return {key: values.half()}
    if values.ndim == 5 and not values[:, :, :-1].any():  # a filter over time that only ever sees a still
        shapes[key] = list(values.shape)
        values = values[:, :, -1:].contiguous()
    rows = values.flatten(1)
    scale = (rows.abs().amax(1) / most).clamp(min=1e-6).half()
    steps = (rows / scale.float()[:, None]).round().clamp(-most, most).to(torch.int8).view(values.shape)
    if most == 7:  # two entries a byte
        low, high = (steps + 8).to(torch.uint8).tensor_split([(len(steps) + 1) // 2])
        low[: len(high)] |= high << 4
        steps = low
    return {key: steps, key + SCALE: scale}
