"""Code2Wav of many requests at once, each a stream of its own: joined, a request's samples are those of one pass.

Keeps one state a request on the device and pads the pieces of a step to one length; neither padding nor company changes
a sample by more than the rounding of another batch shape does.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stages.models.qwen3_omni.code2wav import DecodeCounts, Piece
from stages.models.qwen3_omni.code2wav_stream import Code2WavStream
from stages.runners.graphs import BucketGraphs, Paths, Size, Staging

Advanced = tuple[torch.Tensor, torch.Tensor]  # samples [rows, n] and states [rows, state_size]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The buffers of a forward call; `states` is None where all rows begin."""

    staging: Staging
    states: torch.Tensor | None


class ExactDecoder:
    """On a GPU two forward calls a step at most: one for the requests that begin, one for those that go on.

    On a CPU a row a call, unless `batched` says otherwise: one row keeps it busy and stays in its caches (16 rows of
    the tiny model at once take 2 to 4 times as long as one by one). `first` and `later` are the (rows, frames) of calls
    that run in buffers of their own, as CUDA graphs on a GPU.
    """

    def __init__(
        self,
        module: Any,
        *,
        device: torch.device,
        batched: bool | None = None,
        first: Iterable[Size] = (),
        later: Iterable[Size] = (),
    ) -> None:
        self._stream = Code2WavStream(module)
        self._device = device
        self._batched = device.type != "cpu" if batched is None else batched
        self._groups = int(module.config.num_quantizers)
        dtype = module.code_embedding.weight.dtype
        self._states = StateTable(self._stream.state_size, dtype=dtype, device=device)
        self.paths = Paths()

        def buckets(sizes: Iterable[Size], *, begins: bool) -> BucketGraphs[_Inputs, Advanced]:
            def inputs(size: Size) -> _Inputs:
                states = None if begins else torch.zeros(size[0], self._stream.state_size, dtype=dtype, device=device)
                return _Inputs(self._staging(*size), states)

            return BucketGraphs(self._advance, inputs, buckets=sizes, device=device, paths=self.paths)

        self._graphs = {True: buckets(first, begins=True), False: buckets(later, begins=False)}

    def capture(self) -> None:
        for graphs in self._graphs.values():
            graphs.capture()

    def decode(self, pieces: Sequence[Piece]) -> tuple[list[torch.Tensor], DecodeCounts]:
        """The samples that each piece completes, float32 on the CPU.

        The pieces of a request have to come in order and without a gap; each has at least one frame. Raises KeyError
        for a piece from the middle of an unknown request.
        """
        waves: dict[int, torch.Tensor] = {}
        computed = 0
        for batch in self._batches(pieces):
            computed += self._forward(batch, waves, begins=batch[0].start == 0)
        frames = sum(piece.end - piece.start for piece in pieces)
        return [waves[piece.uid] for piece in pieces], DecodeCounts(frames=frames, padding=computed - frames)

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

    def _forward(self, batch: Sequence[Piece], waves: dict[int, torch.Tensor], *, begins: bool) -> int:
        """Puts the samples into `waves`; returns the frames that went through the network, padding included."""
        lengths = [piece.end - piece.start for piece in batch]
        uids = [piece.uid for piece in batch]
        graphs = self._graphs[begins]
        bucket = graphs.find(len(batch), max(lengths))
        if bucket is None:
            self.paths.eager += 1
            states = None if begins else self._states.read(uids)
            inputs = _Inputs(self._staging(len(batch), max(lengths)), states)
            self._fill(inputs.staging, batch, lengths)
            samples, after = self._advance(inputs)
        else:
            inputs = bucket.inputs
            self._fill(inputs.staging, batch, lengths)
            if inputs.states is not None:
                inputs.states[: len(batch)] = self._states.read(uids)
            samples, after = graphs.run(bucket)
        self._states.write(uids, after[: len(batch)])
        rows = samples[: len(batch)].float().cpu()
        for uid, row, length in zip(uids, rows, lengths, strict=True):
            waves[uid] = row[: self._stream.samples(length, begins=begins)]
        rows_computed, _, frames = inputs.staging.tensors["codes"].shape
        return int(rows_computed * frames)

    def _advance(self, given: _Inputs) -> Advanced:
        at = given.staging.tensors
        return self._stream(at["codes"], at["frames"], at["starts"], given.states)

    def _staging(self, rows: int, frames: int) -> Staging:
        return Staging(
            {
                "codes": (torch.int64, (rows, self._groups, frames)),
                "frames": (torch.int64, (rows,)),
                "starts": (torch.int64, (rows,)),
            },
            self._device,
        )

    @staticmethod
    def _fill(staging: Staging, batch: Sequence[Piece], lengths: Sequence[int]) -> None:
        """Behind the pieces there are rows without a frame; what codes they have does not matter."""
        arrays = staging.arrays()
        for row, piece, length in zip(arrays["codes"], batch, lengths, strict=False):
            row[:, :length] = piece.codes[piece.start : piece.end].T
        arrays["frames"][:] = 0
        arrays["frames"][: len(batch)] = lengths
        arrays["starts"][: len(batch)] = [piece.start for piece in batch]
        staging.send()


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
