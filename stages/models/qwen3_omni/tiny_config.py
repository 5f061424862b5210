"""The configuration files of the tiny checkpoint, in the published layout and with the published field names.

Data only: sizes small enough for two CPU cores, ids that agree with `tiny_tokenizer`, rates of the real model (24 kHz,
12.5 frames a second). What is not said is transformers' default. Must not import torch or transformers.
"""

from typing import Any

from stages.models.qwen3_omni.tiny_tokenizer import TOKEN_IDS

CODEBOOK_SIZE = 64
CODE_GROUPS = 4
# Talker ids [V - 1024, V) are suppressed, so codes are exactly [0, CODEBOOK_SIZE) when V = 1024 + CODEBOOK_SIZE.
TALKER_VOCAB_SIZE = 1024 + CODEBOOK_SIZE
CODEC_IDS = {
    "codec_pad_id": 64,
    "codec_bos_id": 65,
    "codec_eos_token_id": 66,
    "codec_nothink_id": 67,
    "codec_think_bos_id": 68,
    "codec_think_eos_id": 69,
}
SPEAKER_IDS = {"ethan": 72, "chelsie": 73, "aiden": 74}

_ROPE = {
    "rope_theta": 1000000,
    "interleaved": True,
    "mrope_interleaved": True,
    "mrope_section": [4, 2, 2],
}
_MEDIA_IDS = {
    "audio_token_id": TOKEN_IDS["<|audio_pad|>"],
    "image_token_id": TOKEN_IDS["<|image_pad|>"],
    "video_token_id": TOKEN_IDS["<|video_pad|>"],
    "audio_start_token_id": TOKEN_IDS["<|audio_start|>"],
    "audio_end_token_id": TOKEN_IDS["<|audio_end|>"],
    "vision_start_token_id": TOKEN_IDS["<|vision_start|>"],
    "position_id_per_seconds": 13,
    "seconds_per_chunk": 2,
}


def _thinker(vocab_size: int) -> dict[str, Any]:
    text = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 32,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 0,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": dict(_ROPE),
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    audio = {
        "num_mel_bins": 128,
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "output_dim": 64,
        "downsample_hidden_size": 8,
    }
    return {
        "text_config": text,
        "vision_config": vision,
        "audio_config": audio,
        "tie_word_embeddings": False,
        "user_token_id": TOKEN_IDS["user"],
        "vision_end_token_id": TOKEN_IDS["<|vision_end|>"],
        **_MEDIA_IDS,
    }


def _talker() -> dict[str, Any]:
    text = {
        "vocab_size": TALKER_VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 64,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "rope_parameters": dict(_ROPE),
    }
    predictor = {
        "vocab_size": CODEBOOK_SIZE,
        "num_code_groups": CODE_GROUPS,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_theta": 1000000},
    }
    return {
        "text_config": text,
        "code_predictor_config": predictor,
        "num_code_groups": CODE_GROUPS,
        "thinker_hidden_size": 64,
        "accept_hidden_layer": 1,
        "speaker_id": dict(SPEAKER_IDS),
        "spatial_merge_size": 2,
        "output_router_logits": False,
        "tie_word_embeddings": False,
        **CODEC_IDS,
        **_MEDIA_IDS,
    }


def _code2wav() -> dict[str, Any]:
    return {
        "codebook_size": CODEBOOK_SIZE,
        "num_quantizers": CODE_GROUPS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "sliding_window": 72,
        "max_position_embeddings": 8000,
        "decoder_dim": 32,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "rope_parameters": {"rope_theta": 10000},
    }


def model_config(vocab_size: int) -> dict[str, Any]:
    """`config.json`."""
    return {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "dtype": "float32",
        "thinker_config": _thinker(vocab_size),
        "talker_config": _talker(),
        "code2wav_config": _code2wav(),
        "im_start_token_id": TOKEN_IDS["<|im_start|>"],
        "im_end_token_id": TOKEN_IDS["<|im_end|>"],
        "system_token_id": TOKEN_IDS["system"],
        "user_token_id": TOKEN_IDS["user"],
        "assistant_token_id": TOKEN_IDS["assistant"],
        "tts_pad_token_id": TOKEN_IDS["<tts_pad>"],
        "tts_bos_token_id": TOKEN_IDS["<tts_text_bos>"],
        "tts_eos_token_id": TOKEN_IDS["<tts_text_eod>"],
    }


def generation_config() -> dict[str, Any]:
    """`generation_config.json`. Short limits: a model that has learnt nothing does not always find an end."""
    return {
        "thinker_max_new_tokens": 64,
        "talker_max_new_tokens": 256,
        "eos_token_id": TOKEN_IDS["<|im_end|>"],
        "pad_token_id": TOKEN_IDS["<|endoftext|>"],
    }


_IMAGE: dict[str, Any] = {
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
_PIXELS = (32 * 32, 256 * 256)
_AUDIO = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "return_attention_mask": True}


def preprocessor_config() -> dict[str, Any]:
    """`preprocessor_config.json`: image processor and audio feature extractor, flat, as published."""
    return {
        "processor_class": "Qwen3OmniMoeProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
        **_IMAGE,
        "min_pixels": _PIXELS[0],
        "max_pixels": _PIXELS[1],
        **_AUDIO,
    }


def processor_config() -> dict[str, Any]:
    """`processor_config.json`: the same processors, nested, plus the video processor."""
    return {
        "processor_class": "Qwen3OmniMoeProcessor",
        "image_processor": {
            "image_processor_type": "Qwen2VLImageProcessor",
            **_IMAGE,
            "size": {"shortest_edge": _PIXELS[0], "longest_edge": _PIXELS[1]},
        },
        "feature_extractor": _AUDIO,
        "video_processor": {
            "video_processor_type": "Qwen2VLVideoProcessor",
            **_IMAGE,
            "size": {"shortest_edge": 32 * 32, "longest_edge": 128 * 128},
        },
    }


CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.content is string -%}
{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part.type == 'video' -%}
{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- elif part.type == 'audio' -%}
{{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}
{%- elif part.type == 'text' -%}
{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
