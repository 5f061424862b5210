"""nano-image in Qwen-Image's published layout: sizes of every part, the tokenizer, the folder that diffusers loads."""

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from stages.models.qwen_image.tiny import SCHEDULER, TOKENS

SIDE = 64
"""Pixels of a picture, wide and high."""
_CHANNELS, _WIDTH = 8, 160
_TRANSFORMER = {
    "in_channels": 4 * _CHANNELS,
    "out_channels": _CHANNELS,
    "num_layers": 5,
    "num_attention_heads": 5,
    "attention_head_dim": 32,
    "joint_attention_dim": _WIDTH,
    "axes_dims_rope": [8, 12, 12],
}
_VAE: dict[str, Any] = {
    "base_dim": 16,
    "z_dim": _CHANNELS,
    "dim_mult": [1, 2, 4],
    "num_res_blocks": 1,
    "temperal_downsample": [False, False],  # as many as there are halvings of the side: a latent is 4 pixels wide
}
_TEXT = {
    "hidden_size": _WIDTH,
    "intermediate_size": 2 * _WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "max_position_embeddings": 1152,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e4},
}
# It reads no pictures: the least that the class allows.
_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 1,
    "out_hidden_size": _WIDTH,
    "fullatt_block_indexes": [0],
}
_VOCABULARY = 1300

# What a request is given that leaves it open: the size it was trained at, and guidance, without which it draws worse.
_SIZE = {"width": SIDE, "height": SIDE, "one_size": True}
DEFAULTS: dict[str, Any] = {**_SIZE, "steps": 8, "negative_prompt": "", "true_cfg_scale": 3.0}


def transformer() -> Any:
    from diffusers import QwenImageTransformer2DModel

    model = QwenImageTransformer2DModel(**_TRANSFORMER)
    # Every block begins as the identity: https://arxiv.org/abs/2212.09748, adaLN-Zero.
    modulations = [mod[1] for block in model.transformer_blocks for mod in (block.img_mod, block.txt_mod)]
    for last in (*modulations, model.norm_out.linear, model.proj_out):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return model


def vae(mean: Sequence[float] | None = None, deviation: Sequence[float] | None = None) -> Any:
    """`mean` and `deviation` are those of its latents, a value a channel: 0 and 1 until they are measured."""
    from diffusers import AutoencoderKLQwenImage

    return AutoencoderKLQwenImage(
        **_VAE, latents_mean=list(mean or [0.0] * _CHANNELS), latents_std=list(deviation or [1.0] * _CHANNELS)
    )


def text_encoder(tokenizer: Any) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {**_TEXT, "vocab_size": len(tokenizer)}
    model = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(text_config=text, vision_config=_VISION, tie_word_embeddings=True)
    )
    # So large that a word is not lost in what attention adds before anything is learnt.
    nn.init.normal_(model.get_input_embeddings().weight, std=0.5)
    return model


def tokenizer(text: Sequence[str]) -> Any:
    """Byte-level BPE over `text` and the pipeline's own template, of which it has every word: the pipeline drops 34
    tokens, so that the template must have as many before the prompt. Raises ValueError if it has not."""
    from transformers import Qwen2Tokenizer

    template = pipeline().prompt_template_encode
    empty = Qwen2Tokenizer(extra_special_tokens=TOKENS)
    trained = any_case(
        empty.train_new_from_iterator(
            [[template.format("")] * 5000, list(text)], vocab_size=_VOCABULARY, show_progress=False
        ).backend_tokenizer
    )
    before = len(trained(template.partition("{}")[0]).input_ids)
    if before != pipeline().prompt_template_encode_start_idx:
        raise ValueError(f"the template's beginning has {before} tokens, the pipeline drops 34")
    return trained


def any_case(backend: Any) -> Any:
    """A tokenizer around `backend` that reads capitals as small and `grey` as `gray`; the template keeps its own
    capital. Not a Qwen2Tokenizer: that class has a normalizer of its own, whatever its file says."""
    from tokenizers import Regex, normalizers
    from transformers import PreTrainedTokenizerFast

    (capital,) = re.findall(r"\b[A-Z].{20}", pipeline().prompt_template_encode)
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"\bgrey\b"), "gray"),
            normalizers.Replace(capital.lower(), capital),
        ]
    )
    end = TOKENS[0]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, extra_special_tokens=TOKENS, eos_token=end, pad_token=end, unk_token=end
    )


def pipeline(**parts: Any) -> Any:
    """diffusers' pipeline over some of its parts; the others are None."""
    from diffusers import FlowMatchEulerDiscreteScheduler, QwenImagePipeline

    names = ("vae", "text_encoder", "tokenizer", "transformer")
    return QwenImagePipeline(scheduler=FlowMatchEulerDiscreteScheduler(**SCHEDULER), **dict.fromkeys(names) | parts)
