"""The tiny checkpoint: a random Qwen3-Omni of about 0.7 M parameters in the published layout, built once into a cache
folder. It is the embedded default of the family and what the tests run. Must not import torch or transformers; fetches
nothing.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from stages.models.qwen3_omni import tiny_config, tiny_tokenizer, tiny_weights

WEIGHTS_FILE = "model.safetensors"
FILES = (
    "config.json",
    "generation_config.json",
    WEIGHTS_FILE,
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
)
# Raise it when the values of `tiny_weights` change; everything else is part of the key by itself.
_WEIGHTS_VERSION = 1


def cache_root(environ: Mapping[str, str]) -> Path:
    """Where omni keeps what it can build again: `$OMNI_CACHE`, else `$XDG_CACHE_HOME/omni`, else `~/.cache/omni`."""
    if environ.get("OMNI_CACHE"):
        return Path(environ["OMNI_CACHE"]).expanduser()
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "omni"
    return Path(environ.get("HOME") or Path.home()) / ".cache" / "omni"


def _texts() -> dict[str, str]:
    def as_json(content: dict[str, Any]) -> str:
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    return {
        "config.json": as_json(tiny_config.model_config(tiny_tokenizer.VOCABULARY_SIZE)),
        "generation_config.json": as_json(tiny_config.generation_config()),
        "tokenizer.json": as_json(tiny_tokenizer.tokenizer_json()),
        "tokenizer_config.json": as_json(tiny_tokenizer.tokenizer_config()),
        "chat_template.jinja": tiny_config.CHAT_TEMPLATE,
        "preprocessor_config.json": as_json(tiny_config.preprocessor_config()),
        "processor_config.json": as_json(tiny_config.processor_config()),
    }


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    config = tiny_config.model_config(tiny_tokenizer.VOCABULARY_SIZE)
    save_file(tiny_weights.weights(config), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    for path in folder.iterdir():
        # Without this, a power loss after the rename could leave a complete-looking folder of empty files.
        with path.open("rb") as file:
            os.fsync(file.fileno())


def tiny_checkpoint(root: Path) -> Path:
    """The folder of the tiny checkpoint below `root`, built if it is not there.

    Safe when several processes build at once: each writes a folder of its own and renames it into place; the first one
    wins and the others use what it wrote. An `OSError` (no space, no permission) passes through.
    """
    texts = _texts()
    key = hashlib.sha256(repr((_WEIGHTS_VERSION, tiny_weights.SEED, sorted(texts.items()))).encode()).hexdigest()
    final = root / "checkpoints" / f"qwen3_omni-tiny-{key[:12]}"
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        _write(scratch, texts)
        scratch.chmod(0o755)
        try:
            scratch.rename(final)
        except OSError:
            # Renaming onto a folder with files in it fails: somebody else was first.
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final
