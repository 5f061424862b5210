"""Steps of the thinker and the talker: as CUDA graphs where a bucket holds them, else as the plain functions.

Everything that a step needs of the host is on the CPU until here, and goes to the device in one copy. Tokens and rows
beyond those of a call are padding, whose keys and values go to the block that belongs to nobody. Knows no requests.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stages.models.qwen3_omni.talker import Frames, Talker
from stages.models.qwen3_omni.thinker import Thinker
from stages.runners.graphs import BucketGraphs, Paths, Size, Staging, batch_buckets
from stages.runners.kv_cache import PagedCache, StepLayout
from stages.runners.sampler import Sampler, SamplingStep, Work
from stages.runners.sampling import DrawKey, SamplingParams

# Tokens of a step with parts of prompts. A prompt alone has graphs of its own, where it pays.
_PREFILLS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_ALONE = 512
_FEW = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """What to capture: numbers of rows that decode, and (tokens, rows) of the other steps. `blocks` is the length of a
    row's block table."""

    decode: tuple[int, ...] = ()
    prefill: tuple[Size, ...] = ()
    blocks: int = 1

    @staticmethod
    def of(rows: int, tokens: int, blocks: int) -> "Buckets":
        """For steps of up to `rows` rows and `tokens` tokens."""
        sizes = [*(size for size in _PREFILLS if size < tokens), tokens]
        alone = [(size, 1) for size in sizes if size <= _ALONE]
        mixed = [(size, rows) for size in sizes if size >= _FEW]
        return Buckets(decode=batch_buckets(rows), prefill=(*alone, *mixed), blocks=blocks)


class PackedInputs:
    """The buffers of a step: its layout, `extra` tensors, and padding behind what was filled in last."""

    def __init__(
        self,
        cache: PagedCache,
        size: Size,
        blocks: int,
        extra: dict[str, tuple[torch.dtype, Size]],
        *,
        seats: int | None = None,
    ) -> None:
        """`seats` is what the buffer of that name is filled with."""
        tokens, rows = size if len(size) == 2 else (size[0], size[0])
        self._single = len(size) == 1
        self._cache = cache
        device = cache.keys.device
        self._staging = Staging(
            {
                "slots": (torch.int64, (tokens,)),
                "query_starts": (torch.int32, (rows + 1,)),
                "kv_lengths": (torch.int32, (rows,)),
                **extra,
            },
            device,
        )
        self.tensors = self._staging.tensors
        self._tables: npt.NDArray[np.int32] = np.zeros((0, 0), dtype=np.int32)  # those on the device
        self.layout = StepLayout(
            slots=self.tensors["slots"],
            query_starts=self.tensors["query_starts"],
            kv_lengths=self.tensors["kv_lengths"],
            block_tables=torch.full((rows, blocks), cache.sink, dtype=torch.int32, device=device),
            max_query=1 if self._single else tokens,
            padded=not self._single,
        )
        arrays = self._staging.arrays()
        self._pad(arrays, 0, 0)
        if seats is not None:
            arrays["seats"][:] = seats
        self._staging.send()

    def fill(self, layout: StepLayout, **values: Any) -> None:
        """`layout` and `values` are on the CPU; a value fills the beginning of its buffer, in all dimensions."""
        self.layout.memo.clear()  # of the step before
        arrays = self._staging.arrays()
        rows, tokens = len(layout.kv_lengths), len(layout.slots)
        arrays["slots"][:tokens] = layout.slots.numpy()
        arrays["query_starts"][: rows + 1] = layout.query_starts.numpy()
        arrays["kv_lengths"][:rows] = layout.kv_lengths.numpy()
        self._pad(arrays, rows, tokens)
        for name, value in values.items():
            given = value.numpy() if isinstance(value, torch.Tensor) else value
            arrays[name][tuple(slice(count) for count in given.shape)] = given
        self._staging.send()
        tables = layout.block_tables.numpy()
        if not np.array_equal(tables, self._tables):
            self._tables = tables.copy()
            into = self.layout.block_tables
            into[:rows, : tables.shape[1]].copy_(layout.block_tables)
            into[rows:, 0].fill_(self._cache.sink)

    def _pad(self, arrays: Any, rows: int, tokens: int) -> None:
        """A row of padding that decodes has one token, any other has none."""
        arrays["slots"][tokens:] = self._cache.sink * self._cache.block_tokens
        starts = arrays["query_starts"]
        starts[rows + 1 :] = np.arange(rows + 1, len(starts)) if self._single else tokens
        arrays["kv_lengths"][rows:] = 1


class ThinkerSteps:
    """`Thinker.decode` and `Thinker.prefill`; their arguments are on the CPU."""

    def __init__(self, thinker: Thinker, cache: PagedCache, buckets: Buckets) -> None:
        self._thinker = thinker
        self._device = device = cache.keys.device
        self.paths = Paths()

        def decoding(size: Size) -> PackedInputs:
            extra = {"ids": (torch.int64, size), "positions": (torch.float32, size)}
            return PackedInputs(cache, size, buckets.blocks, extra)

        def decode(given: PackedInputs) -> torch.Tensor:
            return thinker.decode(given.tensors["ids"], given.tensors["positions"], given.layout)

        def prefilling(size: Size) -> PackedInputs:
            tokens, rows = size
            extra = {
                "ids": (torch.int64, (tokens,)),
                "positions": (torch.float32, (3, tokens)),
                "places": (torch.int64, (rows,)),
            }
            return PackedInputs(cache, size, buckets.blocks, extra)

        def prefill(given: PackedInputs) -> torch.Tensor:
            at = given.tensors
            return thinker.prefill(at["ids"], at["positions"], given.layout, at["places"])

        self._decode = BucketGraphs(
            decode, decoding, buckets=[(n,) for n in buckets.decode], device=device, paths=self.paths
        )
        self._prefill = BucketGraphs(prefill, prefilling, buckets=buckets.prefill, device=device, paths=self.paths)

    def capture(self) -> None:
        self._prefill.capture()
        self._decode.capture()

    def decode(self, ids: torch.Tensor, positions: torch.Tensor, layout: StepLayout) -> torch.Tensor:
        """Logits [R, vocabulary], valid until the next call."""
        bucket = self._decode.find(len(ids))
        if bucket is None:
            self.paths.eager += 1
            return self._thinker.decode(ids.to(self._device), positions.to(self._device), layout.to(self._device))
        bucket.inputs.fill(layout, ids=ids, positions=positions)
        return self._decode.run(bucket)[: len(ids)]

    def prefill(
        self, ids: torch.Tensor, positions: torch.Tensor, layout: StepLayout, places: torch.Tensor
    ) -> torch.Tensor:
        """Logits [len(places), vocabulary], valid until the next call."""
        bucket = self._prefill.find(len(ids), len(layout.kv_lengths))
        if bucket is None:
            self.paths.eager += 1
            device = self._device
            return self._thinker.prefill(ids.to(device), positions.to(device), layout.to(device), places.to(device))
        bucket.inputs.fill(layout, ids=ids, positions=positions, places=places)
        return self._prefill.run(bucket)[: len(places)]


class TalkerSteps:
    """`Talker.decode` with the draw of the next first codes, and `Talker.prefill`; their arguments are on the CPU, but
    for embeddings. `spare` is a slot of the talker and of the sampler that no request ever has."""

    def __init__(self, talker: Talker, sampler: Sampler, cache: PagedCache, buckets: Buckets, *, spare: int) -> None:
        self._talker = talker
        self._sampler = sampler
        self._spare = spare
        self._device = device = cache.keys.device
        self.paths = Paths()
        residual = talker.predictor.groups - 1
        work = Work()
        if buckets.decode:
            work = sampler.all_work()
            sampler.open(spare, SamplingParams(max_tokens=1), DrawKey(seed=0, stage="talker"))

        def decoding(size: Size) -> PackedInputs:
            extra = {
                "first": (torch.int64, size),
                "text": (torch.int64, size),
                "seats": (torch.int64, size),
                "positions": (torch.float32, size),
                "numbers": (torch.float64, (*size, residual)),
                "greedy": (torch.bool, size),
                "draws": (torch.float64, size),
                "no_end": (torch.bool, size),
            }
            return PackedInputs(cache, size, buckets.blocks, extra, seats=spare)

        def decode(given: PackedInputs) -> tuple[torch.Tensor, torch.Tensor]:
            at = given.tensors
            frames = Frames(
                first=at["first"], text=at["text"], slots=at["seats"], numbers=at["numbers"], greedy=at["greedy"]
            )
            logits, codes = talker.decode(frames, at["positions"], given.layout)
            step = SamplingStep(work=work, slots=at["seats"], numbers=at["draws"], no_end=at["no_end"])
            return sampler(logits, step).tokens, codes

        def prefilling(size: Size) -> tuple[PackedInputs, torch.Tensor]:
            tokens, rows = size
            extra = {
                "positions": (torch.float32, (3, tokens)),
                "places": (torch.int64, (rows,)),
                "seats": (torch.int64, (rows,)),
            }
            return PackedInputs(cache, size, buckets.blocks, extra, seats=spare), talker.embeds(tokens)

        def prefill(given: tuple[PackedInputs, torch.Tensor]) -> torch.Tensor:
            packed, embeds = given
            at = packed.tensors
            return talker.prefill(embeds, at["positions"], packed.layout, at["places"], at["seats"])

        self._decode = BucketGraphs(
            decode, decoding, buckets=[(n,) for n in buckets.decode], device=device, paths=self.paths
        )
        self._prefill = BucketGraphs(prefill, prefilling, buckets=buckets.prefill, device=device, paths=self.paths)

    def capture(self) -> None:
        self._prefill.capture()
        self._decode.capture()

    def decode(
        self, frames: Frames, positions: torch.Tensor, layout: StepLayout, sampling: SamplingStep
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [R] and codes [R, groups - 1], valid until the next call."""
        rows = len(frames.first)
        bucket = self._decode.find(rows)
        if bucket is None:
            self.paths.eager += 1
            device = self._device
            logits, codes = self._talker.decode(frames.to(device), positions.to(device), layout.to(device))
            return self._sampler(logits, sampling).tokens, codes
        values = {} if frames.numbers is None else {"numbers": frames.numbers}
        if sampling.work.draw:
            values["draws"] = sampling.numbers
        bucket.inputs.fill(
            layout,
            first=frames.first,
            text=frames.text,
            seats=self._seats(frames.slots, bucket.size[0]),
            positions=positions,
            greedy=np.full(rows, frames.numbers is None) if frames.greedy is None else frames.greedy,
            no_end=sampling.no_end if sampling.work.ends else np.full(rows, False),
            **values,
        )
        tokens, codes = self._decode.run(bucket)
        return tokens[:rows], codes[:rows]

    def prefill(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        layout: StepLayout,
        places: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """Logits [len(places), codec vocabulary], valid until the next call. `embeds` are on the device."""
        bucket = self._prefill.find(len(embeds), len(layout.kv_lengths))
        if bucket is None:
            self.paths.eager += 1
            device = self._device
            return self._talker.prefill(
                embeds, positions.to(device), layout.to(device), places.to(device), slots.to(device)
            )
        packed, into = bucket.inputs
        into[: len(embeds)].copy_(embeds)
        packed.fill(layout, positions=positions, places=places, seats=self._seats(slots, bucket.size[1]))
        return self._prefill.run(bucket)[: len(places)]

    def _seats(self, slots: torch.Tensor, rows: int) -> npt.NDArray[np.int64]:
        seats = np.full(rows, self._spare)
        seats[: len(slots)] = slots.numpy()
        return seats
