"""nano-omni in Qwen3-Omni's published layout: sizes of every part, the tokenizer, the folder that transformers loads.

What is not a size is the tiny checkpoint's: field names, chat template, processors.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.models.qwen3_omni import tiny_config, tiny_tokenizer
from training.nano_image.drawings import SIDE

GROUPS, CODES = 16, 512
FRAME = 1920
"""Samples of a frame, at 24 kHz."""

VOICES = {"chelsie": 560, "ethan": 561}
_CODEC_IDS = {
    "codec_pad_id": 550,
    "codec_bos_id": 551,
    "codec_eos_token_id": 552,
    "codec_nothink_id": 553,
    "codec_think_bos_id": 554,
    "codec_think_eos_id": 555,
}
_VOCABULARY = 2048
_TABLE = 0.5  # deviation of a text token's embedding
_WIDTH = 192
_ROPE = {"mrope_section": [12, 6, 6], "rope_theta": 10000}
_ATTENTION = {"hidden_size": _WIDTH, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 48}
# Two experts of two: every token goes through both, weighted, so that nothing about their choice has to be learned.
_EXPERTS = {"num_experts_per_tok": 2}

_SIZES: Mapping[str, Any] = {
    "thinker_config": {
        "text_config": {
            **_ATTENTION,
            **_EXPERTS,
            "num_experts": 2,
            "num_hidden_layers": 5,
            "moe_intermediate_size": 256,
            "intermediate_size": 256,
            "rope_parameters": _ROPE,
        },
        "vision_config": {
            "depth": 3,
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_heads": 4,
            "out_hidden_size": _WIDTH,
            "deepstack_visual_indexes": [1],
        },
        "audio_config": {
            "d_model": 160,
            "encoder_layers": 4,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 480,
            "output_dim": _WIDTH,
            "downsample_hidden_size": 32,
        },
    },
    "talker_config": {
        "text_config": {
            **_ATTENTION,
            **_EXPERTS,
            "num_local_experts": 2,
            "num_hidden_layers": 6,
            "vocab_size": 1024 + CODES,
            "moe_intermediate_size": 192,
            "shared_expert_intermediate_size": 192,
            "intermediate_size": 256,
            "rope_parameters": _ROPE,
        },
        "code_predictor_config": {
            **_ATTENTION,
            "vocab_size": CODES,
            "num_code_groups": GROUPS,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention"] * 3,
            "intermediate_size": 384,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000},
        },
        "num_code_groups": GROUPS,
        "thinker_hidden_size": _WIDTH,
        "speaker_id": VOICES,
        **_CODEC_IDS,
    },
    "code2wav_config": {
        "codebook_size": CODES,
        "num_quantizers": GROUPS,
        "hidden_size": _WIDTH,
        "intermediate_size": 384,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "sliding_window": 32,
        "decoder_dim": 192,
    },
}


def config(tokenizer: Any) -> Any:
    """transformers' configuration of the whole model."""
    from transformers import Qwen3OmniMoeConfig

    return Qwen3OmniMoeConfig(**config_json(tokenizer))


def config_json(tokenizer: Any) -> dict[str, Any]:
    """`config.json`, with the tokenizer's ids."""
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in tiny_tokenizer.TOKEN_IDS}
    places = {number: ids[name] for name, number in tiny_tokenizer.TOKEN_IDS.items()}
    tiny = tiny_config.model_config(-(-len(tokenizer) // 64) * 64)
    found: dict[str, Any] = _merged(_with_ids(tiny, places), _SIZES)
    return found


def tokenizer(text: Sequence[str]) -> Any:
    """Byte-level BPE over `text`; the role names are one token each, as the talker's prompt needs them."""
    from transformers import Qwen2Tokenizer

    empty = Qwen2Tokenizer(extra_special_tokens=list(tiny_tokenizer.SPECIAL_TOKENS))
    roles = ("system", "user", "assistant")
    trained = empty.train_new_from_iterator(
        [["\n".join(roles) + "\n"] * 5000, list(text)], vocab_size=_VOCABULARY, show_progress=False
    )
    for role in roles:
        if len(trained.tokenize(role)) != 1:
            raise ValueError(f"{role!r} is {trained.tokenize(role)}, not one token")
    return trained


def model(tokenizer: Any) -> Any:
    """transformers' whole model with fresh weights, float32."""
    import torch
    from transformers import Qwen3OmniMoeForConditionalGeneration

    from training.nano_omni import experts

    found = Qwen3OmniMoeForConditionalGeneration(config(tokenizer))
    experts.use(found)
    with torch.no_grad():
        for name, values in found.named_parameters():
            # transformers leaves the talker's experts as they lie in memory, and its gates at 0.
            if name.startswith("talker.") and (".experts." in name or name.endswith("mlp.gate.weight")):
                values.normal_(0.0, 0.02)
            # What a block adds is scaled by almost nothing at first: too slow for a short training.
            if name.startswith("code2wav.") and name.endswith(("gamma", "scale")):
                values.fill_(0.1)
            # The thinker's table stays as it is drawn; its lm_head is another. What the talker makes of it has to be as
            # large as a frame's codes, or it would not listen to the text for a long time.
            if name == "thinker.model.language_model.embed_tokens.weight":
                values.normal_(0.0, _TABLE).requires_grad_(False)
            if name == "talker.text_projection.linear_fc1.weight":
                values.normal_(0.0, 1 / (_TABLE * _WIDTH**0.5))
            # What it sees and hears the talker is told in words.
            if name.startswith("talker.hidden_projection."):
                values.zero_()
    return found


def save(folder: Path, model: Any, tokenizer: Any) -> None:
    """The folder as published."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    pixels = SIDE**2  # as trained: the processor scales other pictures
    files = {
        "config.json": config_json(tokenizer),
        "generation_config.json": {
            **tiny_config.generation_config(),
            "thinker_max_new_tokens": 64,
            "talker_max_new_tokens": 256,
            "talker_temperature": 0.7,
            "talker_top_k": 20,
            "talker_repetition_penalty": 1.0,
            "eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"),
            "pad_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        },
        "tokenizer_config.json": tiny_tokenizer.tokenizer_config() | {"added_tokens_decoder": _added(tokenizer)},
        "preprocessor_config.json": tiny_config.preprocessor_config() | {"min_pixels": pixels, "max_pixels": pixels},
        "processor_config.json": _merged(
            tiny_config.processor_config(),
            {"image_processor": {"size": {"shortest_edge": pixels, "longest_edge": pixels}}},
        ),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(tiny_config.CHAT_TEMPLATE, encoding="utf-8")


def _added(tokenizer: Any) -> dict[str, Any]:
    entries = tiny_tokenizer.tokenizer_config()["added_tokens_decoder"].values()
    return {str(tokenizer.convert_tokens_to_ids(entry["content"])): entry for entry in entries}


def _with_ids(content: Any, places: Mapping[int, int], key: str = "") -> Any:
    """The tiny configuration with this tokenizer's ids: its `*_token_id` fields name ids of the tiny tokenizer."""
    if isinstance(content, dict):
        return {name: _with_ids(value, places, name) for name, value in content.items()}
    return places.get(content, content) if key.endswith("_token_id") and not key.startswith("codec_") else content


def _merged(content: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(content)
    for name, value in sizes.items():
        nested = isinstance(value, Mapping) and isinstance(found.get(name), Mapping) and name != "speaker_id"
        found[name] = _merged(found[name], value) if nested else value
    return found
