"""The tiny checkpoint: a random Stable Diffusion 3 in the published layout, built once into a cache folder. It is the
embedded default of the family and what the tests run. Importing this module imports no torch. Fetches nothing.
"""

import sys
from pathlib import Path
from typing import Any

from stages.models.random_weights import fill, folder_name, save

SEED = 20_240_612
# Raise it when what `write` makes of the values below changes.
_VERSION = 1

_TRANSFORMER: dict[str, Any] = {
    "sample_size": 32,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "caption_projection_dim": 32,
    "joint_attention_dim": 64,
    "pooled_projection_dim": 64,
    "pos_embed_max_size": 32,
}
_VAE: dict[str, Any] = {
    "block_out_channels": [8, 8, 16, 16],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 1,
    "latent_channels": 16,
    "norm_num_groups": 4,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "shift_factor": 0.0609,
    "scaling_factor": 1.5305,
}
_CLIP: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "projection_dim": 32,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_T5: dict[str, Any] = {
    "vocab_size": 384,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
}
# What a request is given that leaves it open.
DEFAULTS = {"width": 128, "height": 128, "steps": 8}
NAME = folder_name("sd3", _VERSION, SEED, _TRANSFORMER, _VAE, _CLIP, _T5, DEFAULTS)


def write(folder: Path) -> None:
    """Makes every part and saves the whole as diffusers does. The tokenizers have a token for each byte."""
    from diffusers import (
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        SD3Transformer2DModel,
        StableDiffusion3Pipeline,
    )
    from transformers import ByT5Tokenizer, CLIPTextConfig, CLIPTextModelWithProjection, T5Config, T5EncoderModel

    pipeline = StableDiffusion3Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=AutoencoderKL(**_VAE),
        text_encoder=CLIPTextModelWithProjection(CLIPTextConfig(**_CLIP)),
        tokenizer=ByT5Tokenizer(model_max_length=77),
        text_encoder_2=CLIPTextModelWithProjection(CLIPTextConfig(**_CLIP)),
        tokenizer_2=ByT5Tokenizer(model_max_length=77),
        text_encoder_3=T5EncoderModel(T5Config(**_T5)),
        tokenizer_3=ByT5Tokenizer(model_max_length=512),
        transformer=SD3Transformer2DModel(**_TRANSFORMER),
    )
    gains = {"add_": 2.0, "shared": 0.0, "embed_tokens": 0.0, "token_embedding": 0.0}
    for number, part in enumerate(("vae", "text_encoder", "text_encoder_2", "text_encoder_3", "transformer")):
        fill(getattr(pipeline, part), seed=SEED + number, gains=gains)
    save(pipeline, folder, DEFAULTS)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
