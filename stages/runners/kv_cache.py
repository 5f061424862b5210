"""The paged KV cache of a stage, and how a step's packed tokens lie in it.

Which blocks a request has is the scheduler's decision; here they are only written down. Knows no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_TABLE_ROWS, _TABLE_BLOCKS = 8, 16  # to begin with; both grow


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLayout:
    """Where the tokens of one step lie. All rows are one packed sequence: row r has the tokens
    [query_starts[r], query_starts[r + 1]), the last ones of its sequence.

    `slots` [T] int64 is where each token's key and value go, block * block_tokens + offset. `query_starts` [R + 1]
    int32; `kv_lengths` [R] int32, the tokens of each row's sequence once this step's are written; `block_tables`
    [R, blocks] int32, padded with any valid block; `max_query`, the most tokens of a row. `padded`: the last tokens may
    belong to no row. `memo` is for an implementation to keep what is the same in every layer.
    """

    slots: torch.Tensor
    query_starts: torch.Tensor
    kv_lengths: torch.Tensor
    block_tables: torch.Tensor
    max_query: int
    padded: bool = False
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def to(self, device: torch.device) -> "StepLayout":
        """The same layout there."""
        return StepLayout(
            slots=self.slots.to(device),
            query_starts=self.query_starts.to(device),
            kv_lengths=self.kv_lengths.to(device),
            block_tables=self.block_tables.to(device),
            max_query=self.max_query,
            padded=self.padded,
        )


@dataclass(frozen=True, slots=True)
class Span:
    """A row's tokens: `tokens` of the request's sequence, from index `start`."""

    uid: int
    start: int
    tokens: int


class PagedCache:
    """Keys and values of all layers, [layers, blocks + 1, block_tokens, kv_heads, head_dim] each.

    The block behind those of the scheduler, `sink`, belongs to nobody: a step of a fixed size writes its padding there.
    Contents are finite from the beginning, because masked positions are multiplied with 0.
    """

    def __init__(
        self,
        *,
        layers: int,
        blocks: int,
        block_tokens: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, blocks + 1, block_tokens, kv_heads, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.sink = blocks

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        """`keys` and `values` [T, kv_heads, head_dim] go to `slots` [T]."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, values)


def block_bytes(*, layers: int, block_tokens: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """What one block takes, keys and values of all layers."""
    return 2 * layers * block_tokens * kv_heads * head_dim * int(dtype.itemsize)


class BlockTables:
    """The blocks of each request, in the order of its sequence."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._table: npt.NDArray[np.int32] = np.zeros((_TABLE_ROWS, _TABLE_BLOCKS), dtype=np.int32)
        self._room: npt.NDArray[np.int64] = np.zeros(_TABLE_ROWS, dtype=np.int64)  # blocks, by row of the table
        self._rows: dict[int, int] = {}
        self._free = list(range(_TABLE_ROWS))

    def extend(self, uid: int, blocks: Sequence[int]) -> None:
        """Puts `blocks` behind those that the request has."""
        if not blocks:
            return
        if uid not in self._rows:
            if not self._free:
                self._grow(rows=len(self._table) * 2)
            self._rows[uid] = self._free.pop()
            self._room[self._rows[uid]] = 0
        row = self._rows[uid]
        begin = int(self._room[row])
        end = begin + len(blocks)
        if end > self._table.shape[1]:
            self._grow(blocks=max(end, self._table.shape[1] * 2))
        self._table[row, begin:end] = blocks
        self._room[row] = end

    def drop(self, uid: int) -> None:
        """The request has no blocks any more; one that had none may be named."""
        row = self._rows.pop(uid, None)
        if row is not None:
            self._free.append(row)

    def layout(self, spans: Sequence[Span]) -> StepLayout:
        """The layout of a step over `spans`, in this order, on the CPU.

        Raises ValueError for a row that reaches beyond the blocks of its request.
        """
        starts = np.array([span.start for span in spans], dtype=np.int64)
        tokens = np.array([span.tokens for span in spans], dtype=np.int64)
        lengths = starts + tokens
        rows = self._checked(spans, lengths)
        tables = self._table[rows, : -(-int(lengths.max()) // self._block_tokens)]
        ends = tokens.cumsum()
        longest = int(tokens.max())
        if longest == 1:
            owners, positions = np.arange(len(spans)), starts
        else:
            owners = np.repeat(np.arange(len(spans)), tokens)
            positions = np.arange(int(ends[-1])) + np.repeat(lengths - ends, tokens)
        blocks = tables[owners, positions // self._block_tokens].astype(np.int64)
        slots = blocks * self._block_tokens + positions % self._block_tokens
        return StepLayout(
            slots=torch.from_numpy(slots),
            query_starts=torch.from_numpy(np.concatenate(([0], ends)).astype(np.int32)),
            kv_lengths=torch.from_numpy(lengths.astype(np.int32)),
            block_tables=torch.from_numpy(tables),
            max_query=longest,
        )

    def _checked(self, spans: Sequence[Span], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows of the table."""
        rows = np.array([self._rows.get(span.uid, -1) for span in spans], dtype=np.int64)
        room = np.where(rows < 0, 0, self._room[rows] * self._block_tokens)
        if (beyond := lengths > room).any():
            at = int(beyond.argmax())
            raise ValueError(f"request {spans[at].uid} reaches token {lengths[at]}, but has KV blocks for {room[at]}")
        return rows

    def _grow(self, *, rows: int | None = None, blocks: int | None = None) -> None:
        old = self._table
        self._table = np.zeros((rows or old.shape[0], blocks or old.shape[1]), dtype=np.int32)
        self._table[: old.shape[0], : old.shape[1]] = old
        self._room = np.concatenate((self._room, np.zeros(len(self._table) - len(old), dtype=np.int64)))
        self._free.extend(range(old.shape[0], self._table.shape[0]))
