"""Requests for measuring, and how many operations a denoising step takes. Torch-free."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from stages.messages import ImageParams
from stages.models.checkpoint import read_json
from stages.models.registry import RequestSize

# Of the pipeline's template: what is dropped before the prompt, and what stays behind it.
_DROPPED_TOKENS, _CLOSING_TOKENS = 34, 5
_TIME_CHANNELS = 256  # of the sinusoidal embedding of a timestep
_FLOP = 2  # a multiplication and an addition


def sized(size: RequestSize, draw: Random) -> Mapping[str, Any]:
    """A prompt of digits, each of which is a token: Qwen's tokenizers cut them apart before they merge anything."""
    digits = draw.choices("0123456789", k=max(1, size.prompt_tokens - _DROPPED_TOKENS - _CLOSING_TOKENS))
    return {"prompt": "".join(digits)}


def step_flops(model_path: str, image: ImageParams, prompt_tokens: int) -> int:
    """FLOP of one request's denoising step: its matrix products, two for each multiplication. Guided, it has two rows,
    both as long as the prompt.

    Source: the layers of diffusers' QwenImageTransformer2DModel with the folder's sizes. A block has, for pictures and
    for texts, a modulation of 6 D^2 a row, and 12 D^2 a token (query, key, value, output, an MLP of 4 D), and attention
    over both, 2 S^2 D. With the published sizes, 1024x1024 and 64 tokens of text behind the template, two rows are
    138.6 TFLOP.
    """
    config = read_json(Path(model_path) / "transformer" / "config.json")
    vae = read_json(Path(model_path) / "vae" / "config.json")
    inner = int(config.get("num_attention_heads", 24)) * int(config.get("attention_head_dim", 128))
    channels = int(config.get("in_channels", 64))
    side = 2 << len(vae.get("temperal_downsample", (False, True, True)))
    pixels = (image.width // side) * (image.height // side)
    texts = max(1, prompt_tokens - _DROPPED_TOKENS)
    every = pixels + texts
    squared = inner * inner
    block = squared * (2 * 6 + 12 * every) + 2 * every * every * inner
    patch = int(config.get("patch_size", 2))
    out = patch * patch * int(config.get("out_channels", 16) or channels)
    ends = (
        _TIME_CHANNELS * inner
        + squared  # the timestep
        + pixels * channels * inner
        + texts * int(config.get("joint_attention_dim", 3584)) * inner
        + 2 * squared  # the last norm's modulation
        + pixels * inner * out
    )
    row = int(config.get("num_layers", 60)) * block + ends
    return _FLOP * row * (2 if image.guided else 1)
