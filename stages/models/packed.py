"""Checkpoints that come with omni: weights of 8 bits in one file, unpacked once into a folder of published layout.

The format: every file of the folder but its weights as it is; `packed.safetensors` has every tensor as `FILE:NAME`. An
int8 tensor has beside it `FILE:NAME/scale`, float16, one value an entry of its first dimension, which it is multiplied
with. A tensor of five dimensions that the metadata's `shapes` (JSON, name to shape) lists has only the last entry of
its third dimension; the others are 0. Torch-free.
"""

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

WEIGHTS = "packed.safetensors"
SCALE = "/scale"
SHAPES = "shapes"


def unpack(packed: Path, folder: Path) -> None:
    """Writes into `folder` (which is there) the checkpoint in `packed`, in float32. Raises OSError."""
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import save_file

    files: dict[str, dict[str, Any]] = defaultdict(dict)
    with safe_open(packed / WEIGHTS, framework="numpy") as stored:
        shapes = json.loads((stored.metadata() or {}).get(SHAPES, "{}"))
        names = set(stored.keys())
        for key in sorted(name for name in names if not name.endswith(SCALE)):
            values = stored.get_tensor(key).astype(np.float32)
            if key + SCALE in names:
                scale = stored.get_tensor(key + SCALE).astype(np.float32)
                values *= scale.reshape(-1, *[1] * (values.ndim - 1))
            if key in shapes:
                whole = np.zeros(shapes[key], dtype=np.float32)
                whole[:, :, -1:] = values
                values = whole
            file, _, name = key.partition(":")
            files[file][name] = values
    for path in packed.rglob("*"):
        if path.is_file() and path.name != WEIGHTS:
            target = folder / path.relative_to(packed)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for file, tensors in files.items():
        save_file(tensors, folder / file, metadata={"format": "pt"})
