"""A checkpoint folder of published layout, made small enough for the repository: weights of 8 bits in one file, as
`stages.models.packed` reads them."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from stages.models.packed import PACKED_FILE, SCALE, SHAPES

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
    save_file(tensors, packed / PACKED_FILE, metadata={SHAPES: json.dumps(shapes)})
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
    return {key: steps.view(values.shape), key + SCALE: scale}
