"""Code2Wav in the chunks that transformers' `chunked_decode` uses: the reference that `generate` is compared with.

A chunk depends on nothing but the codes before it, so chunks may be computed in separate steps; joined, they equal
`chunked_decode` bit by bit (each chunk loses the samples that its transposed convolutions drop at the end).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stages.runners.graphs import Paths

LEFT_CONTEXT_FRAMES = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Frames [start, end) of a request, to be decoded next. `codes` [frames, groups], on the CPU, has all that came."""

    uid: int
    codes: torch.Tensor
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCounts:
    """What a step's forward calls went through: `frames` of the requests, `padding` that belongs to nobody, `context`
    frames that had been decoded before."""

    frames: int = 0
    padding: int = 0
    context: int = 0


class ChunkedDecoder:
    """A piece at a time, each with its left context decoded again. The pieces have to be transformers' chunks."""

    def __init__(self, module: Any, *, device: torch.device) -> None:
        self._module = module
        self._device = device
        self._samples_per_frame = int(module.total_upsample)
        self.paths = Paths()

    def capture(self) -> None:
        """Its windows have any length: no graphs."""

    def decode(self, pieces: Sequence[Piece]) -> tuple[list[torch.Tensor], DecodeCounts]:
        """The samples of each piece, float32 on the CPU."""
        # The first chunk after the start takes all that is before it, as transformers does.
        contexts = [min(piece.start, LEFT_CONTEXT_FRAMES) for piece in pieces]
        self.paths.eager += len(pieces)
        waves = [self._chunk(piece, context) for piece, context in zip(pieces, contexts, strict=True)]
        return waves, DecodeCounts(frames=sum(p.end - p.start for p in pieces), context=sum(contexts))

    def forget(self, uid: int) -> None:
        """Nothing is kept between pieces."""

    def _chunk(self, piece: Piece, context: int) -> torch.Tensor:
        window = piece.codes[piece.start - context : piece.end].T[None].to(self._device, torch.long)
        wave = self._module(window)[..., context * self._samples_per_frame :]
        return wave.float().reshape(-1).cpu()
