"""Code2Wav: blocks of codes to a waveform, in the chunks that transformers' `chunked_decode` uses.

A chunk depends on nothing but the codes before it, so chunks may be computed in separate steps; joined, they equal
`chunked_decode` sample by sample (each chunk loses the samples that its transposed convolutions drop at the end).
"""

from typing import Any

import torch

from stages.models.qwen3_omni.contract import CHUNK_FRAMES

LEFT_CONTEXT_FRAMES = 25


class Code2Wav:
    """transformers' code2wav, a chunk at a time."""

    def __init__(self, module: Any, *, device: torch.device) -> None:
        self._module = module
        self._device = device
        self.samples_per_frame = int(module.total_upsample)

    def chunk(self, codes: torch.Tensor, start: int) -> tuple[torch.Tensor, int]:
        """Decodes frames [start, start + 300) of `codes` [frames, groups]; the samples, float32 on the CPU, and the
        frame at which the next chunk starts."""
        end = min(start + CHUNK_FRAMES, len(codes))
        # The first chunk after the start takes all that is before it, as transformers does.
        context = LEFT_CONTEXT_FRAMES if start > LEFT_CONTEXT_FRAMES else start
        window = codes[start - context : end].T[None].to(self._device, torch.long)
        wave = self._module(window)[..., context * self.samples_per_frame :]
        return wave.float().reshape(-1).cpu(), end
