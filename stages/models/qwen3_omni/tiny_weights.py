"""The weights of the tiny checkpoint: every published tensor, filled from one seeded generator.

The values are chosen so that greedy decoding is lively (it neither stalls nor saturates) and so that both ways of
stopping occur. Must not import torch or transformers.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.models.qwen3_omni.shapes import stage_shapes
from stages.models.qwen3_omni.tiny_tokenizer import ANSWER_IDS

Array = npt.NDArray[np.float32]

SEED = 20
# Times 1 / sqrt(fan in). Above 1 the networks are chaotic enough that greedy decoding does not fall into one word.
_GAIN = 2.0
# The row that ends a text is scaled up, so that most answers end by themselves after a few dozen words.
_TEXT_END_GAIN = 1.1
# Keeps the waveform inside (-1, 1): a clipped sample would hide an error.
_LAST_CONVOLUTION_GAIN = 0.006


def _fill(name: str, shape: tuple[int, ...], noise: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Values for one tensor from standard normal noise, by the role that its name says."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("alpha", "beta"):
        return 0.1 * noise
    if leaf in ("scale", "gamma"):
        return 0.3 + 0.05 * noise
    if leaf == "bias":
        return 0.05 * noise
    if len(shape) == 1:
        return 1.0 + 0.1 * noise
    if "embed_tokens" in name or "codec_embedding" in name or "code_embedding" in name:
        return noise
    fan_in = math.prod(shape[1:])
    gain = 1.0 if name.startswith(("code2wav.", "thinker.visual", "thinker.audio")) else _GAIN
    return noise * (gain / math.sqrt(fan_in))


def weights(config: dict[str, Any]) -> dict[str, Array]:
    """The checkpoint's tensors, float32, the same on every call."""
    # RandomState's stream is frozen by numpy's compatibility policy; the newer generators' streams are not.
    generator = np.random.RandomState(SEED)
    tensors = {
        name: _fill(name, shape, generator.standard_normal(shape)).astype(np.float32)
        for stage in ("thinker", "talker", "code2wav")
        for name, shape in stage_shapes(config, stage)
    }
    head = tensors["thinker.lm_head.weight"]
    silent = np.ones(len(head), dtype=bool)
    silent[[*ANSWER_IDS, config["im_end_token_id"]]] = False
    # A row of zeros scores 0, which the best of the other rows always beats: such a token is never the answer.
    head[silent] = 0.0
    head[config["im_end_token_id"]] *= np.float32(_TEXT_END_GAIN)
    last = len(config["code2wav_config"]["upsample_rates"]) + 2
    tensors[f"code2wav.decoder.{last}.conv.weight"] *= np.float32(_LAST_CONVOLUTION_GAIN)
    return tensors
