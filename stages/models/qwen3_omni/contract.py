"""What the planner knows of Qwen3-Omni without loading it: stages, edges, files, sizes, speakers. Torch-free."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.config import StageTuning
from stages.errors import CheckpointError
from stages.models.cache import cache_root
from stages.models.checkpoint import read_json, weight_problems
from stages.models.packed import unpacked
from stages.models.qwen3_omni.measured import feed, sized
from stages.models.qwen3_omni.sizes import stage_memory, step_bytes
from stages.models.qwen3_omni.tiny import tiny_checkpoint
from stages.models.registry import FamilyContract, InputContract, StageContract

SAMPLE_RATE_HZ = 24_000
SAMPLES_PER_FRAME = 1920
CHUNK_FRAMES = 300
"""Frames of a request that code2wav decodes in one step at most, and so the largest piece of audio: as many as
transformers' `chunked_decode` does."""

MODEL_TYPE = "qwen3_omni_moe"
# Decoded media of one request: 5 minutes of audio take 19 MB, 64 frames of 720p video 177 MB.
_MEDIA_BYTES = 256 << 20
# Media tokens of one prompt whose hidden states fit in float32: 5 minutes of audio, or 4 pictures of a megapixel. The
# default ring is twice as large and bfloat16 half, so that four times as many pass.
_MEDIA_TOKENS = 4096
# A token is spoken once it is known not to be the last. Hidden states of media come from the thinker's device.
_HEARD = InputContract(modes=("incremental", "complete"), lookahead_units=1)
_LANGUAGE = StageTuning(step_tokens=2048, kv_block_tokens=16, kv_blocks=0, graphs=True)

# Any one file of a line will do.
_TEXT_FILES = (
    ("config.json",),
    ("tokenizer.json", "vocab.json"),
    ("tokenizer_config.json",),
    ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"),
    ("preprocessor_config.json", "processor_config.json"),
)


def check_model(path: str, load_format: str) -> tuple[str, ...]:
    """Problems of a checkpoint folder, a line each; with `dummy` it needs nothing but a configuration."""
    folder = Path(path)
    if not folder.is_dir():
        return (f"model.path: {folder}: no such folder",)
    needed = _TEXT_FILES[:1] if load_format == "dummy" else _TEXT_FILES
    problems = [
        f"{folder / names[0]}: no such file" + (f" (nor {' or '.join(names[1:])})" if names[1:] else "")
        for names in needed
        if not any((folder / name).is_file() for name in names)
    ]
    if (folder / "config.json").is_file():
        problems += _config_problems(folder)
    if load_format != "dummy":
        problems += weight_problems(folder)
    return tuple(problems)


def _config_problems(folder: Path) -> list[str]:
    try:
        config = read_json(folder / "config.json")
    except CheckpointError as error:
        return [str(error)]
    if config.get("model_type") != MODEL_TYPE:
        return [f"{folder / 'config.json'}: model_type is {config.get('model_type')!r}, not {MODEL_TYPE!r}"]
    sections = ("thinker_config", "talker_config", "code2wav_config")
    return [
        f"{folder / 'config.json'}: no {section}" for section in sections if not isinstance(config.get(section), dict)
    ]


def voices(model_path: str) -> tuple[str, ...]:
    """The speakers of a checkpoint, as its configuration names them."""
    speakers: Mapping[str, Any] = read_json(Path(model_path) / "config.json")["talker_config"].get("speaker_id") or {}
    return tuple(speakers)


def edge_bytes(model_path: str, producer: str, consumer: str) -> int:
    """The largest payload that an edge's default ring holds.

    thinker -> talker: ids of a full context and the hidden states of `_MEDIA_TOKENS`, float32 at most.
    talker -> code2wav: a frame of codes, int32, for every step of a full context.
    """
    if producer == "request":
        return _MEDIA_BYTES
    if consumer == "request":
        return CHUNK_FRAMES * SAMPLES_PER_FRAME * 4
    config = read_json(Path(model_path) / "config.json")
    if producer == "thinker":
        text = config["thinker_config"]["text_config"]
        context = int(text["max_position_embeddings"])
        return 2 * 8 * context + min(context, _MEDIA_TOKENS) * int(text["hidden_size"]) * 4
    talker = config["talker_config"]
    return int(talker["text_config"]["max_position_embeddings"]) * int(talker["num_code_groups"]) * 4


CONTRACTS: Mapping[str, FamilyContract] = {
    "qwen3_omni": FamilyContract(
        name="qwen3_omni",
        stages={
            "thinker": StageContract(
                execution_type="llm_ar",
                outputs=("text",),
                sampled=True,
                logprobs=True,
                memory_share=8,
                tuning=_LANGUAGE,
            ),
            "talker": StageContract(
                execution_type="llm_ar",
                inputs={"thinker": _HEARD},
                sampled=True,
                memory_share=2,
                tuning=_LANGUAGE,
            ),
            "code2wav": StageContract(
                execution_type="llm_generation",
                inputs={"talker": InputContract(modes=("incremental", "complete"))},
                outputs=("audio",),
                max_units_a_row=CHUNK_FRAMES,
                tuning=StageTuning(first_chunk_frames=4, chunk_frames=25, decode="exact", graphs=True),
            ),
        },
        media=("image", "audio", "video"),
        has_weights=True,
        check_model=check_model,
        embedded={
            "nano": lambda: unpacked(Path(__file__).parent / "nano", "nano-omni"),
            "tiny": lambda: str(tiny_checkpoint(cache_root(os.environ))),
        },
        voices=voices,
        edge_bytes=edge_bytes,
        stage_memory=stage_memory,
        step_bytes=step_bytes,
        sized=sized,
        feed=feed,
        references={"transformers, as shipped": "", "transformers, grouped_mm": "grouped_mm"},
    )
}
