"""Decode steps of the thinker and the talker as CUDA graphs: the plain functions, over a fixed number of rows.

Called as `Thinker.decode` and `Talker.decode` are; rows beyond those of a call are padding, whose keys and values go to
the block that belongs to nobody. Knows no requests.
"""

from dataclasses import dataclass

import torch

from stages.models.qwen3_omni.talker import Talker
from stages.models.qwen3_omni.thinker import Thinker
from stages.runners.graphs import BucketGraphs, batch_buckets
from stages.runners.kv_cache import PagedCache, StepLayout


def padded_layout(cache: PagedCache, rows: int, blocks: int) -> StepLayout:
    """A layout of `rows` padding rows of one token, with room for `blocks` in each row's table."""
    device = cache.keys.device
    tables = torch.zeros((rows, blocks), dtype=torch.int32, device=device)
    tables[:, 0] = cache.sink
    return StepLayout(
        slots=torch.full((rows,), cache.sink * cache.block_tokens, dtype=torch.int64, device=device),
        query_starts=torch.arange(rows + 1, dtype=torch.int32, device=device),
        kv_lengths=torch.ones(rows, dtype=torch.int32, device=device),
        block_tables=tables,
        max_query=1,
    )


def fill_layout(into: StepLayout, layout: StepLayout, cache: PagedCache) -> None:
    """The rows of `layout`, one token each, and padding behind them."""
    rows, blocks = layout.block_tables.shape
    into.slots[:rows].copy_(layout.slots)
    into.slots[rows:].fill_(cache.sink * cache.block_tokens)
    into.kv_lengths[:rows].copy_(layout.kv_lengths)
    into.kv_lengths[rows:].fill_(1)
    into.block_tables[:rows, :blocks].copy_(layout.block_tables)
    into.block_tables[rows:, 0].fill_(cache.sink)


@dataclass(frozen=True, slots=True)
class ThinkerInputs:
    ids: torch.Tensor
    positions: torch.Tensor
    layout: StepLayout


@dataclass(frozen=True, slots=True)
class FrameInputs:
    first: torch.Tensor
    text: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    numbers: torch.Tensor
    greedy: torch.Tensor
    layout: StepLayout


class ThinkerGraphs:
    """`Thinker.decode` for up to `rows` rows, whose sequences have up to `blocks` blocks."""

    def __init__(self, thinker: Thinker, cache: PagedCache, *, rows: int, blocks: int, graphs: bool) -> None:
        device = cache.keys.device

        def inputs(count: int) -> ThinkerInputs:
            return ThinkerInputs(
                torch.zeros(count, dtype=torch.int64, device=device),
                torch.zeros(count, dtype=torch.float32, device=device),
                padded_layout(cache, count, blocks),
            )

        def step(given: ThinkerInputs) -> torch.Tensor:
            return thinker.decode(given.ids, given.positions, given.layout)

        self._cache = cache
        self.graphs = BucketGraphs(step, inputs, buckets=batch_buckets(rows), device=device, graphs=graphs)

    def decode(self, ids: torch.Tensor, positions: torch.Tensor, layout: StepLayout) -> torch.Tensor:
        """Logits [R, vocabulary], valid until the next call."""
        rows = len(ids)
        bucket = self.graphs.bucket(rows)
        bucket.inputs.ids[:rows].copy_(ids)
        bucket.inputs.positions[:rows].copy_(positions)
        fill_layout(bucket.inputs.layout, layout, self._cache)
        return self.graphs.run(bucket)[:rows]


class TalkerGraphs:
    """`Talker.decode` for up to `rows` rows, whose sequences have up to `blocks` blocks. `spare` is a slot of the
    talker that no request ever has."""

    def __init__(self, talker: Talker, cache: PagedCache, *, rows: int, blocks: int, spare: int, graphs: bool) -> None:
        device = cache.keys.device

        def inputs(count: int) -> FrameInputs:
            return FrameInputs(
                first=torch.zeros(count, dtype=torch.int64, device=device),
                text=torch.zeros(count, dtype=torch.int64, device=device),
                slots=torch.full((count,), spare, dtype=torch.int64, device=device),
                positions=torch.zeros(count, dtype=torch.float32, device=device),
                numbers=torch.zeros((count, talker.predictor.groups - 1), dtype=torch.float64, device=device),
                greedy=torch.ones(count, dtype=torch.bool, device=device),
                layout=padded_layout(cache, count, blocks),
            )

        def step(given: FrameInputs) -> tuple[torch.Tensor, torch.Tensor]:
            return talker.decode(
                given.first, given.text, given.slots, given.positions, given.layout, given.numbers, given.greedy
            )

        self._cache = cache
        self._spare = spare
        self.graphs = BucketGraphs(step, inputs, buckets=batch_buckets(rows), device=device, graphs=graphs)

    def decode(
        self,
        first: torch.Tensor,
        text: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        layout: StepLayout,
        numbers: torch.Tensor | None,
        greedy: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [R, codec vocabulary] and codes [R, groups - 1], valid until the next call."""
        rows = len(first)
        bucket = self.graphs.bucket(rows)
        into = bucket.inputs
        into.first[:rows].copy_(first)
        into.text[:rows].copy_(text)
        into.slots[:rows].copy_(slots)
        into.slots[rows:].fill_(self._spare)
        into.positions[:rows].copy_(positions)
        if numbers is None:
            into.greedy.fill_(True)
        else:
            into.numbers[:rows].copy_(numbers)
            if greedy is None:
                into.greedy[:rows].fill_(False)
            else:
                into.greedy[:rows].copy_(greedy)
        fill_layout(into.layout, layout, self._cache)
        logits, codes = self.graphs.run(bucket)
        return logits[:rows], codes[:rows]
