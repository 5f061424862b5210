"""Code2Wav of many requests at once, each a stream of its own: joined, a request's samples are those of one pass.

Keeps one state a request on the device and pads the pieces of a step to one length; neither padding nor company changes
a sample by more than the rounding of another batch shape does.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from stages.models.qwen3_omni.code2wav import DecodeCounts, Piece
from stages.models.qwen3_omni.code2wav_stream import Code2WavStream


class ExactDecoder:
    """On a GPU two forward calls a step at most: one for the requests that begin, one for those that go on.

    On a CPU a row a call, unless `batched` says otherwise: one row keeps it busy and stays in its caches (16 rows of
    the tiny model at once take 2 to 4 times as long as one by one).
    """

    def __init__(self, module: Any, *, device: torch.device, batched: bool | None = None) -> None:
        self._stream = Code2WavStream(module)
        self._device = device
        self._batched = device.type != "cpu" if batched is None else batched
        dtype = module.code_embedding.weight.dtype
        self._states = StateTable(self._stream.state_size, dtype=dtype, device=device)

    def decode(self, pieces: Sequence[Piece]) -> tuple[list[torch.Tensor], DecodeCounts]:
        """The samples that each piece completes, float32 on the CPU.

        The pieces of a request have to come in order and without a gap; each has at least one frame. Raises KeyError
        for a piece from the middle of an unknown request.
        """
        waves: dict[int, torch.Tensor] = {}
        padding = 0
        for batch in self._batches(pieces):
            waves.update(self._forward(batch, begins=batch[0].start == 0))
            longest = max(piece.end - piece.start for piece in batch)
            padding += sum(longest - (piece.end - piece.start) for piece in batch)
        frames = sum(piece.end - piece.start for piece in pieces)
        return [waves[piece.uid] for piece in pieces], DecodeCounts(frames=frames, padding=padding)

    def forget(self, uid: int) -> None:
        """Drops a request's state, if it has one."""
        self._states.remove(uid)

    def _batches(self, pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
        """Pieces that one call decodes."""
        if not self._batched:
            yield from ([piece] for piece in pieces)
            return
        for begins in (True, False):
            if batch := [piece for piece in pieces if (piece.start == 0) == begins]:
                yield batch

    def _forward(self, batch: Sequence[Piece], *, begins: bool) -> dict[int, torch.Tensor]:
        lengths = [piece.end - piece.start for piece in batch]
        codes = torch.zeros(len(batch), batch[0].codes.shape[1], max(lengths), dtype=torch.int64)
        for row, piece, length in zip(codes, batch, lengths, strict=True):
            row[:, :length] = piece.codes[piece.start : piece.end].T
        uids = [piece.uid for piece in batch]
        samples, states = self._stream(
            codes.to(self._device),
            torch.tensor(lengths, device=self._device),
            torch.tensor([piece.start for piece in batch], device=self._device),
            None if begins else self._states.read(uids),
        )
        self._states.write(uids, states)
        rows = samples.float().cpu()
        return {
            uid: row[: self._stream.samples(length, begins=begins)]
            for uid, row, length in zip(uids, rows, lengths, strict=True)
        }


class StateTable:
    """Rows [size] by request, in one tensor that grows by doubling: a step reads and writes its rows at once."""

    def __init__(self, size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.empty(0, size, dtype=dtype, device=device)
        self._places: dict[int, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._places)

    def read(self, uids: Sequence[int]) -> torch.Tensor:
        """Copies of the rows [uids, size]. Raises KeyError for a request without one."""
        return self._rows[self._index([self._places[uid] for uid in uids])]

    def write(self, uids: Sequence[int], rows: torch.Tensor) -> None:
        """Sets the rows, new ones where there are none. Two uids must not be the same."""
        places = [self._place(uid) for uid in uids]
        self._rows[self._index(places)] = rows

    def remove(self, uid: int) -> None:
        place = self._places.pop(uid, None)
        if place is not None:
            self._free.append(place)

    def _place(self, uid: int) -> int:
        if uid not in self._places:
            if not self._free:
                self._grow()
            self._places[uid] = self._free.pop()
        return self._places[uid]

    def _grow(self) -> None:
        old, size = self._rows.shape
        self._rows = torch.cat((self._rows, self._rows.new_empty(max(old, 1), size)))
        self._free.extend(range(old, len(self._rows)))

    def _index(self, places: list[int]) -> torch.Tensor:
        return torch.tensor(places, device=self._rows.device)
