"""Continuous batching for `llm_ar`: a step mixes prefill and decode under a budget of tokens and KV blocks.

Places in the batch are given in the order in which requests became ready, and kept to the end. A row at position p
needs more than p units of every incremental input, or that input's end: who is ahead of its producer waits, and guesses
nothing. Where KV blocks run out, the latest request loses its own and is prefilled again later. This module must not
know what a token is; block tables are the runner's.
"""

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field

from stages.errors import RequestRefused
from stages.schedulers.base import KV_BLOCKS, KVCapacity, Refusal, Row, RowProgress, SchedulerOutput
from stages.schedulers.blocks import BlockPool
from stages.schedulers.streams import NO_LOOKAHEAD, UNLIMITED, Entry, StreamScheduler, take


@dataclass(slots=True)
class _Sequence:
    """A request that has been ready once: `computed` tokens of it are in the KV cache, in `blocks`.

    `turn` is its number in the order of readiness. `fresh` are blocks that its next row will tell the runner of.
    """

    turn: int
    entry: Entry
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    fresh: tuple[int, ...] = ()
    row: Row | None = None

    @property
    def length(self) -> int:
        """The prompt and all that was generated."""
        return self.entry.prompt + self.entry.position

    @property
    def left(self) -> int:
        """Tokens to compute before the next one can be generated."""
        return self.length - self.computed

    @property
    def decodes(self) -> bool:
        """All but the token that was generated last is computed."""
        return self.entry.position > 0 and self.left == 1


class ARScheduler(StreamScheduler):
    """One row is a decode step, or a chunk of a prefill, of one of up to `max_batch` requests.

    A step computes at most `step_tokens` tokens: one for each request that decodes, then prefills in turn, so that a
    prefill always goes on and a decode is never put off for it. Without `kv` the stage keeps its state in its own way:
    prompts are prefilled whole, whatever the budget, and nobody is preempted. `stage` is named in refusals.
    """

    def __init__(
        self,
        max_batch: int,
        *,
        step_tokens: int | None = None,
        kv: KVCapacity | None = None,
        lookahead: Mapping[str, int] = NO_LOOKAHEAD,
        stage: str = "STAGE",
    ) -> None:
        """Raises ValueError for a budget with less than a token for each request."""
        super().__init__(max_batch, lookahead)
        if step_tokens is not None and step_tokens < max_batch:
            raise ValueError(f"step_tokens={step_tokens} is less than max_batch={max_batch}")
        self._step_tokens = UNLIMITED if step_tokens is None or kv is None else step_tokens
        self._pool = None if kv is None else BlockPool(kv)
        self._stage = stage
        self._turns = 0
        self._waiting: list[_Sequence] = []  # ready, without a place; in turn
        self._running: dict[int, _Sequence] = {}  # with a place; who has produced something last is the last

    def size(self, uid: int, tokens: int) -> None:
        super().size(uid, tokens)
        if self._pool is not None and tokens > self._pool.tokens:
            raise RequestRefused(f"the prompt has {tokens} tokens, but {self._holds(self._pool)}")

    def schedule(self, credits: Mapping[str, int], held: frozenset[int]) -> SchedulerOutput | None:
        self._admit()
        chosen = self._choose(dict(credits), held)
        preempted: list[int] = []
        refused: list[Refusal] = []
        if self._pool is not None:
            for sequence, tokens in sorted(chosen, key=lambda each: each[0].turn):
                if sequence.entry.uid in self._running:  # not preempted for one before it
                    self._grow(sequence, tokens, self._pool, preempted, refused)
        gone = {*preempted, *(refusal.uid for refusal in refused)}
        rows = tuple(self._row(sequence, tokens) for sequence, tokens in chosen if sequence.entry.uid not in gone)
        if not (rows or gone):
            return None
        return SchedulerOutput(rows=rows, preempted=tuple(preempted), refused=tuple(refused))

    def gauges(self) -> tuple[tuple[str, int], ...]:
        blocks = 0 if self._pool is None else self._pool.used
        return (
            *super().gauges(),
            ("waiting", len(self._waiting)),
            ("running", len(self._running)),
            (KV_BLOCKS, blocks),
        )

    def _admit(self) -> None:
        """Gives free places to those who wait, whether or not they have credit now: a place is a turn at it.

        With it comes room for the whole sequence, and nobody overtakes the first for whom there is none. A block is
        left for each of those that run: who was admitted is not to be preempted a moment later.
        """
        while self._waiting and len(self._running) < self._max_batch:
            first = self._waiting[0]
            if self._pool is not None:
                needed = self._pool.needed(first.length)
                if needed > self._pool.free or (self._running and needed + len(self._running) > self._pool.free):
                    return
                first.fresh = self._pool.take(needed)
                first.blocks.extend(first.fresh)
            self._running[self._waiting.pop(0).entry.uid] = first

    def _choose(self, credits: dict[str, int], held: frozenset[int]) -> list[tuple[_Sequence, int]]:
        """Who runs, and how many tokens of each. Prefills share what the decodes leave, in turn."""
        able = [
            sequence
            for uid, sequence in self._running.items()
            if sequence.entry.position < sequence.entry.limit and not sequence.entry.in_flight and uid not in held
        ]
        budget = self._step_tokens - sum(sequence.decodes for sequence in able)
        whole = self._pool is None
        chosen = []
        for sequence in able:
            tokens = sequence.left if whole or sequence.decodes else min(sequence.left, budget)
            if not tokens or (tokens == sequence.left and not take(sequence.entry.consumers, credits)):
                continue
            if not sequence.decodes:
                budget -= tokens
            chosen.append((sequence, tokens))
        return chosen

    def _grow(
        self, sequence: _Sequence, tokens: int, pool: BlockPool, preempted: list[int], refused: list[Refusal]
    ) -> None:
        """Gives a row the blocks that it needs, those of later requests if there are no others."""
        if pool.needed(sequence.length) > pool.capacity.blocks:
            message = f"the request has come to {sequence.length} tokens, but {self._holds(pool)}"
            refused.append(Refusal(uid=sequence.entry.uid, message=message))
            return
        missing = pool.needed(sequence.computed + tokens) - len(sequence.blocks)
        while missing > pool.free:
            latest = max(
                (each for each in self._running.values() if not each.entry.in_flight), key=lambda each: each.turn
            )
            self._preempt(latest, pool)
            preempted.append(latest.entry.uid)
            if latest is sequence:
                return
        if missing > 0:
            taken = pool.take(missing)
            sequence.blocks.extend(taken)
            sequence.fresh += taken

    def _preempt(self, sequence: _Sequence, pool: BlockPool) -> None:
        """Back to those who wait, at its old turn, with nothing computed."""
        del self._running[sequence.entry.uid]
        pool.give_back(sequence.blocks)
        sequence.blocks.clear()
        sequence.fresh = ()
        sequence.computed = 0
        insort(self._waiting, sequence, key=lambda each: each.turn)

    def _row(self, sequence: _Sequence, tokens: int) -> Row:
        entry, last = sequence.entry, tokens == sequence.left
        entry.in_flight = True
        sequence.row = Row(
            uid=entry.uid,
            phase="decode" if sequence.decodes else "prefill",
            position=entry.position,
            units=1 if last else 0,
            start=sequence.computed,
            tokens=tokens,
            blocks=sequence.fresh,
        )
        sequence.fresh = ()
        if last:  # to the back: who found no credit goes first next time
            self._running[entry.uid] = self._running.pop(entry.uid)
        return sequence.row

    def _runnable(self, entry: Entry, first: bool) -> None:
        if first:
            self._waiting.append(_Sequence(self._turns, entry))
            self._turns += 1

    def _advanced(self, entry: Entry, progress: RowProgress) -> None:
        """Keeps its place."""
        sequence = self._running[entry.uid]
        row, sequence.row = sequence.row, None
        if row is None:
            raise ValueError(f"request {entry.uid} was not part of the step")
        everything = row.tokens if progress.units == row.units else 0
        sequence.computed += everything if progress.tokens is None else progress.tokens

    def _forget(self, uid: int) -> None:
        self._waiting = [sequence for sequence in self._waiting if sequence.entry.uid != uid]
        sequence = self._running.pop(uid, None)
        if sequence is not None and self._pool is not None:
            self._pool.give_back(sequence.blocks)

    def _holds(self, pool: BlockPool) -> str:
        size, key = pool.capacity, f"deploy.stages.{self._stage}"
        return (
            f"the KV cache of stage {self._stage!r} holds {pool.tokens} ({size.blocks} blocks of {size.block_tokens}): "
            f"make the request shorter, or raise {key}.kv_blocks or {key}.memory_fraction"
        )
