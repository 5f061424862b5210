"""The text encoder's language model on a GPU: CUDA graphs over texts that are padded to one of a few lengths.

A token sees none behind it, so that padding changes nothing but rounding, and that by a text's own length alone.
"""

from collections.abc import Sequence
from typing import Any

import torch

from stages.runners.graphs import BucketGraphs, Paths, Size

_LENGTHS = (64, 128, 256)
_NO_MASK = {"full_attention": None, "sliding_attention": None}  # but the causal one


class TextGraphs:
    """`model` is transformers' Qwen2_5_VLTextModel, on `device`; of a text the first `most` tokens count. Without a GPU
    nothing is captured."""

    def __init__(self, model: Any, device: torch.device, most: int) -> None:
        def inputs(size: Size) -> torch.Tensor:
            return torch.zeros(1, *size, dtype=torch.int64, device=device)

        def step(tokens: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = model(tokens, attention_mask=_NO_MASK, use_cache=False).last_hidden_state
            return hidden[0]

        lengths = [(length,) for length in (*_LENGTHS, most) if length <= most]
        self._most = most
        self._graphs = BucketGraphs(step, inputs, buckets=lengths, device=device, paths=Paths())
        with torch.inference_mode():
            self._graphs.capture()

    def __call__(self, tokens: Sequence[int]) -> torch.Tensor:
        """The last hidden states [tokens, features], until the next call."""
        tokens = tokens[: self._most]
        bucket = self._graphs.find(len(tokens))
        if bucket is None:
            raise RuntimeError(f"no graph has {len(tokens)} tokens")
        bucket.inputs[0, : len(tokens)].copy_(torch.tensor(tokens), non_blocking=True)
        return self._graphs.run(bucket)[: len(tokens)]
