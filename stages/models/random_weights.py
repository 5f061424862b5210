"""Random weights of embedded defaults whose tensors only their own classes know: made in a process of its own, so that
who asks for them imports no torch."""

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stages.errors import CheckpointError
from stages.models.cache import built_once, cache_root
from stages.models.pipeline_folder import DEFAULTS_FILE


def folder_name(family: str, *values: object) -> str:
    """Of an embedded default that is made of these values: another one for others."""
    return f"{family}-tiny-{hashlib.sha256(repr(values).encode()).hexdigest()[:12]}"


def embedded(name: str, module: str, *words: str) -> str:
    """The folder `name` that `module` with `words` writes, built on first use. Raises CheckpointError, OSError."""
    return str(built_once(cache_root(os.environ), name, partial(_write_elsewhere, module, words)))


def save(pipeline: Any, folder: Path, defaults: Mapping[str, object]) -> None:
    """As diffusers does, with what a request is given that leaves it open."""
    pipeline.save_pretrained(folder)
    (folder / DEFAULTS_FILE).write_text(json.dumps(defaults, indent=2) + "\n", encoding="utf-8")


def _write_elsewhere(module: str, words: tuple[str, ...], folder: Path) -> None:
    """Runs `python -m module folder words`. Raises CheckpointError with the last line of what it says if it fails."""
    command = [sys.executable, "-m", module, str(folder), *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise CheckpointError(f"building the embedded default failed with exit code {done.returncode}: {last}")


def fill(module: Any, *, seed: int, gains: Mapping[str, float]) -> None:
    """Normal values that keep the size of what passes through, so that prompts and seeds can be told apart: with the
    usual small ones the result hardly depends on the prompt. `gains` are by a part of the name; 0 is for an embedding,
    whose values have deviation 1."""
    import torch

    with torch.no_grad():
        for name, tensor in module.state_dict(keep_vars=True).items():
            key = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=7).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(key))
            if tensor.ndim > 1:
                gain = next((gain for part, gain in gains.items() if part in name), 1.0)
                tensor.normal_(0.0, gain * math.prod(tensor.shape[1:]) ** -0.5 if gain else 1.0, generator=generator)
            elif name.endswith("bias"):
                tensor.normal_(0.0, 0.1, generator=generator)
            else:
                tensor.fill_(1.0)
