"""The tiny checkpoint: a random Qwen3-Omni of about 0.7 M parameters in the published layout, built once into a cache
folder. The tests run it: it is small, and `model.path=tiny` names it. Must not import torch or transformers; fetches
nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from stages.models.cache import built_once
from stages.models.qwen3_omni import tiny_config, tiny_tokenizer, tiny_weights

WEIGHTS_FILE = "model.safetensors"
# Raise it when the values of `tiny_weights` change; everything else is part of the key by itself.
_WEIGHTS_VERSION = 1


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


def tiny_checkpoint(root: Path) -> Path:
    """The folder of the tiny checkpoint below `root`, built if it is not there."""
    texts = _texts()
    key = hashlib.sha256(repr((_WEIGHTS_VERSION, tiny_weights.SEED, sorted(texts.items()))).encode()).hexdigest()
    return built_once(root, f"qwen3_omni-tiny-{key[:12]}", lambda folder: _write(folder, texts))
