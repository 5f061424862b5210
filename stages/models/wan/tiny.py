"""The tiny checkpoint: a random Wan in the published layout, built once into a cache folder. It is the embedded default
of the family and what the tests run. Importing this module imports no torch. Fetches nothing.
"""

import sys
from pathlib import Path
from typing import Any

from stages.models.random_weights import fill, folder_name, save

SEED = 20_250_225
# Raise it when what `write` makes of the values below changes.
_VERSION = 1

# As published for 480p.
_SCHEDULER: dict[str, Any] = {
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "num_train_timesteps": 1000,
    "flow_shift": 3.0,
}
_TRANSFORMER: dict[str, Any] = {
    "num_layers": 2,
    "num_attention_heads": 2,
    "attention_head_dim": 24,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 32,
    "freq_dim": 32,
    "ffn_dim": 64,
    "rope_max_seq_len": 64,
}
_VAE: dict[str, Any] = {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 1, 2, 2], "num_res_blocks": 1}
_TEXT: dict[str, Any] = {
    "vocab_size": 384,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
}
# What a request is given that leaves it open, and the most that it may ask for.
DEFAULTS = {"width": 64, "height": 48, "frames": 9, "steps": 6, "most_pixels": 256 * 256, "most_frames": 33}
NAME = folder_name("wan", _VERSION, SEED, _SCHEDULER, _TRANSFORMER, _VAE, _TEXT, DEFAULTS)


def write(folder: Path) -> None:
    """Makes every part and saves the whole as diffusers does. The tokenizer has a token for each byte."""
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
    from transformers import ByT5Tokenizer, UMT5Config, UMT5EncoderModel

    pipeline = WanPipeline(
        scheduler=UniPCMultistepScheduler(**_SCHEDULER),
        vae=AutoencoderKLWan(**_VAE),
        text_encoder=UMT5EncoderModel(UMT5Config(**_TEXT)),
        tokenizer=ByT5Tokenizer(),
        transformer=WanTransformer3DModel(**_TRANSFORMER),
    )
    for module in (pipeline.vae, pipeline.text_encoder, pipeline.transformer):
        fill(module, seed=SEED, gains={"attn2": 2.0, "shared": 0.0, "embed_tokens": 0.0})
    save(pipeline, folder, DEFAULTS)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
