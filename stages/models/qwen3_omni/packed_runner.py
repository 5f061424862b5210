"""What the runners of the language stages share: steps over packed rows, a paged cache, a slot for each request.

A row that cannot be prepared fails its own request; a step that fails, fails all of its rows. What a step computes is
the stage's business; when, the scheduler's.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import torch

from stages.errors import StageError, describe
from stages.models.qwen3_omni.modules import Source
from stages.models.qwen3_omni.packed_steps import Buckets, TalkerSteps, ThinkerSteps
from stages.models.qwen3_omni.runner import StageRunner
from stages.models.registry import CPU_KV_BYTES, KV_HEADROOM_BYTES
from stages.runners.base import RowResult
from stages.runners.kv_cache import BlockTables, PagedCache, Span, StepLayout, block_bytes
from stages.runners.sampler import Sampler
from stages.schedulers.base import KVCapacity, Row

State = TypeVar("State")


_BLOCK_TOKENS = 16
_STEP_TOKENS = 2048


def ends(rows: Sequence[Row]) -> list[int]:
    """Where each row's tokens end in the packed sequence."""
    return list(accumulate(row.tokens for row in rows))


class Slots:
    """Which request has which of a fixed number of places in the step's tables."""

    def __init__(self, count: int) -> None:
        self._free = list(reversed(range(count)))
        self._taken: dict[int, int] = {}

    def get(self, uid: int) -> int | None:
        return self._taken.get(uid)

    def take(self, uid: int) -> int:
        """Raises StageError if every place is taken: more requests are in the batch than it has rows."""
        if not self._free:
            raise StageError(f"request {uid} is in the batch, but all its {len(self._taken)} places are taken")
        slot = self._taken[uid] = self._free.pop()
        return slot

    def give_back(self, uid: int) -> int | None:
        """The place that the request had."""
        slot = self._taken.pop(uid, None)
        if slot is not None:
            self._free.append(slot)
        return slot


class PackedRunner(StageRunner[State]):
    """`ModelRunner` of a stage with a decoder, a KV cache and a sampler."""

    _device: torch.device
    _cache: PagedCache
    _tables: BlockTables
    _slots: Slots
    _sampler: Sampler
    _steps: ThinkerSteps | TalkerSteps
    _most_blocks: int

    def _open_cache(self, decoder: Any, source: Source, *, context: int) -> None:
        """`decoder` is its configuration; `context` the most tokens of a sequence."""
        spec = self._spec
        tokens = spec.tuning.kv_block_tokens or _BLOCK_TOKENS
        sizes: dict[str, Any] = {
            "layers": int(decoder.num_hidden_layers),
            "block_tokens": tokens,
            "kv_heads": int(decoder.num_key_value_heads),
            "head_dim": int(decoder.head_dim),
            "dtype": source.dtype,
        }
        wanted = spec.tuning.kv_blocks or spec.max_batch * -(-context // tokens)
        room = max(self._room(source.device), 0) // block_bytes(**sizes)
        if room < (spec.tuning.kv_blocks or 1):
            key = f"deploy.stages.{spec.stage}"
            ways = [f"lower {key}.kv_blocks"] if spec.tuning.kv_blocks else []
            ways += [f"raise {key}.memory_fraction"] if source.device.type == "cuda" else []
            raise StageError(
                f"{wanted} KV blocks of {tokens} tokens take {wanted * block_bytes(**sizes)} bytes; there is room for "
                f"{room} of them: {' or '.join(ways) or f'lower {key}.kv_block_tokens'}"
            )
        blocks = min(wanted, room)
        self._device = source.device
        self._cache = PagedCache(blocks=blocks, device=source.device, **sizes)
        self._tables = BlockTables(tokens)
        self._slots = Slots(spec.max_batch)
        # The longest sequence's blocks; a step of a fixed size has room for as many in each row.
        self._most_blocks = min(blocks, -(-context // tokens))

    def _buckets(self) -> Buckets:
        """The steps that are captured as graphs: none without a GPU."""
        tuning = self._spec.tuning
        if self._device.type != "cuda" or not tuning.graphs:
            return Buckets()
        return Buckets.of(self._spec.max_batch, tuning.step_tokens or _STEP_TOKENS, self._most_blocks)

    def _room(self, device: torch.device) -> int:
        """Bytes that the cache may take."""
        if device.type != "cuda":
            return CPU_KV_BYTES
        total = int(torch.cuda.get_device_properties(device).total_memory)
        held = int(torch.cuda.memory_reserved(device))
        free, _ = torch.cuda.mem_get_info(device)
        return min(int(total * self._spec.memory_fraction) - held, int(free)) - KV_HEADROOM_BYTES

    def kv_capacity(self) -> KVCapacity | None:
        return KVCapacity(blocks=self._cache.blocks, block_tokens=self._cache.block_tokens)

    def counters(self) -> tuple[tuple[str, int], ...]:
        """`graph_replays` and `eager_runs` of the last step's forward calls."""
        return tuple((name, count) for name, count in self._steps.paths.take() if count)

    def preempt(self, uids: tuple[int, ...]) -> None:
        for uid in uids:
            self._tables.drop(uid)
            self._leave(uid)

    def end(self, uid: int) -> None:
        self._tables.drop(uid)
        self._leave(uid)
        super().end(uid)

    def _leave(self, uid: int) -> None:
        """The request is not in the batch any more."""
        slot = self._slots.give_back(uid)
        if slot is not None:
            self._sampler.close(slot)

    def execute(self, rows: tuple[Row, ...]) -> tuple[RowResult, ...]:
        self._steps.paths.take()
        with torch.inference_mode():
            results: dict[int, RowResult] = {}
            ready = []
            for row in rows:
                self._tables.extend(row.uid, row.blocks)
                try:
                    early = self._prepare(row, self._states[row.uid])
                except Exception as error:
                    # Whatever one request's row raises is that request's failure, not the step's.
                    early = RowResult(uid=row.uid, units=0, error=describe(error, self._spec.stage))
                if early is None:
                    ready.append(row)
                else:
                    results[row.uid] = early
            if ready:
                results.update({result.uid: result for result in self._step(ready)})
            return tuple(results[row.uid] for row in rows)

    def _try(self, uid: int) -> None:
        """A request of two tokens that has begun, to its end. Kernels are loaded at their first use."""
        tokens = self.prompt_tokens(uid)
        blocks = tuple(range(-(-(tokens + 1) // self._cache.block_tokens)))
        self.execute((Row(uid=uid, phase="prefill", position=0, units=1, tokens=tokens, blocks=blocks),))
        self.execute((Row(uid=uid, phase="decode", position=1, units=1, start=tokens, tokens=1),))
        self.end(uid)

    def _results(self, rows: Sequence[Row], drawn: Callable[[Row], RowResult]) -> list[RowResult]:
        """`drawn` of the rows that have drawn a token, in order; what it raises fails that request alone."""
        results = []
        for row in rows:
            try:
                results.append(drawn(row) if row.units else RowResult(uid=row.uid, units=0, tokens=row.tokens))
            except Exception as error:
                results.append(RowResult(uid=row.uid, units=0, error=describe(error, self._spec.stage)))
        return results

    def _layout(self, rows: Sequence[Row]) -> StepLayout:
        return self._tables.layout([Span(row.uid, row.start, row.tokens) for row in rows])

    @abstractmethod
    def _prepare(self, row: Row, state: State) -> RowResult | None:
        """Whatever must be there before the row can run; its result if it does not run in this step."""

    @abstractmethod
    def _step(self, rows: list[Row]) -> list[RowResult]:
        """One forward call over all rows."""
