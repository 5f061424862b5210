"""A checkpoint folder of a diffusers pipeline: a subfolder a part, with its configuration and weights. Torch-free.

What a folder says of its own defaults stands in `omni.json`; published ones have none.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.errors import CheckpointError
from stages.models.checkpoint import read_header, read_json, tensor_files, weight_problems
from stages.models.registry import ImageContract, StageMemory
from stages.payload import ITEM_BYTES

DEFAULTS_FILE = "omni.json"


def own_defaults(folder: Path) -> dict[str, Any]:
    """Raises CheckpointError for a file that is no JSON."""
    return read_json(folder / DEFAULTS_FILE) if (folder / DEFAULTS_FILE).exists() else {}


def pipeline_kind(folder: Path) -> str:
    """The pipeline's class. Raises CheckpointError."""
    return str(read_json(folder / "model_index.json").get("_class_name"))


def pipeline_problems(
    path: str,
    load_format: str,
    *,
    kinds: Collection[str],
    weights: Sequence[str],
    image: Callable[[str], ImageContract],
) -> tuple[str, ...]:
    """Problems of a folder, a line each. `kinds` are pipelines' classes, `weights` are the parts that have some; with
    `dummy` they need none."""
    folder = Path(path)
    if not folder.is_dir():
        return (f"model.path: {folder}: no such folder",)
    configs = (
        "model_index.json",
        "scheduler/scheduler_config.json",
        *(f"{part}/config.json" for part in weights),
        *(f"{part.replace('text_encoder', 'tokenizer')}/tokenizer_config.json" for part in weights if "text" in part),
    )
    absent = [f"{folder / name}: no such file" for name in configs if not (folder / name).is_file()]
    if absent:
        return tuple(absent)
    try:
        found = pipeline_kind(folder)
        if found not in kinds:
            known = " or ".join(map(repr, kinds))
            return (f"{folder / 'model_index.json'}: _class_name is {found!r}, not {known}",)
        image(path)
    except (CheckpointError, ValueError) as error:
        return (str(error),)
    if load_format == "dummy":
        return ()
    return tuple(problem for part in weights for problem in weight_problems(folder / part))


def parts_memory(path: str, parts: Mapping[str, str], exact: Collection[str] = ()) -> StageMemory:
    """The weights of some parts, each as its dtype, but for modules called as in `exact`, which stay float32.

    By the numbers of `parameters` in the folder's own defaults, else by the headers of its files. A further device has
    the transformer alone. Raises CheckpointError for a folder with neither.
    """
    folder, held = Path(path), dict.fromkeys(parts, 0)
    counted: Mapping[str, int] = own_defaults(folder).get("parameters", {})
    for part, dtype in parts.items():
        if part in counted:
            held[part] = ITEM_BYTES[dtype] * counted[part]
            continue
        for file in set(tensor_files(folder / part).values()):
            for name, tensor in read_header(file).items():
                kept = not set(exact).isdisjoint(name.split("."))
                held[part] += ITEM_BYTES["float32" if kept else dtype] * math.prod(tensor.shape)
    return StageMemory(weight_bytes=sum(held.values()), further_bytes=held.get("transformer"))
