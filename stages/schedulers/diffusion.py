"""Batches for `diffusion`: one denoising step is the unit; requests join and leave between two steps.

A step has rows of one kind. Between two denoising steps at most one step encodes and at most one decodes, so that
neither holds up those who denoise and neither starves. A denoising step has rows of one shape; guidance and the number
of steps are each request's own. This module must not know what a latent is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from stages.errors import RequestRefused
from stages.schedulers.base import Denoising, Row, RowProgress, SchedulerOutput
from stages.schedulers.streams import UNLIMITED, Entry, StreamScheduler

LATENT_TOKENS = "latent_tokens"  # the gauge of what those who denoise take of the budget

LOOK_AHEAD = 16
"""How far down the queue a place is given away, past requests whose shape has no room in the budget."""
PASSES = 8
"""How often such a request is passed; then nobody is admitted before it."""
DECODES = 4
"""Pictures that are decoded together where nobody denoises."""

_Work = Literal["encode", "decode", "denoise"]
_TURNS: tuple[_Work, ...] = ("encode", "decode", "denoise")


@dataclass(slots=True)
class _Job:
    """A request that is ready. `passed` counts admissions past it, `waited` denoising steps of others in a row."""

    entry: Entry
    asks: Denoising
    work: _Work
    passed: int = 0
    waited: int = 0

    @property
    def drawn(self) -> bool:
        """Whether all steps are done. One whose preview is decoded comes back and keeps its room in the budget."""
        return self.entry.position >= self.asks.steps


class DiffusionScheduler(StreamScheduler):
    """Up to `max_batch` requests are worked on at once; those of one shape take `step_tokens` latent tokens a step
    together, or one of them more than that alone.

    `denoising` says what a request asks for, once its input is there. `encodes` and `decodes` say whether the stage
    does that work itself, before and after the steps; without `decodes` the last step ends the request.
    """

    def __init__(
        self,
        max_batch: int,
        denoising: Callable[[int], Denoising],
        *,
        step_tokens: int | None = None,
        encodes: bool = True,
        decodes: bool = True,
    ) -> None:
        super().__init__(max_batch)
        self._denoising = denoising
        self._budget = UNLIMITED if step_tokens is None else step_tokens
        self._first: _Work = "encode" if encodes else "denoise"
        self._decodes = decodes
        self._queue: list[_Job] = []  # ready, without a place; in turn
        self._running: dict[int, _Job] = {}  # with a place, which they keep until they are decoded
        self._turn = 0

    def size(self, uid: int, tokens: int) -> None:
        """Puts a request whose input is there into the queue. `tokens` says nothing here."""
        asks = self._denoising(uid)
        if asks.steps < 1 or asks.tokens < 1:
            raise RequestRefused(f"a request of {asks.steps} steps over {asks.tokens} latent tokens draws nothing")
        self._queue.append(_Job(self._entries[uid], asks, self._first))

    def schedule(self, credits: Mapping[str, int], held: frozenset[int]) -> SchedulerOutput | None:
        self._admit()
        able = [job for uid, job in self._running.items() if uid not in held and not job.entry.in_flight]
        for offset in range(len(_TURNS)):
            work = _TURNS[(self._turn + offset) % len(_TURNS)]
            jobs = [job for job in able if job.work == work]
            if jobs:
                self._turn = (self._turn + offset + 1) % len(_TURNS)
                return SchedulerOutput(rows=tuple(_row(job) for job in self._choose(work, jobs)))
        return None

    def _admit(self) -> None:
        """Gives free places away in turn. Who finds no room in the budget is passed by those behind who do, but only
        by a few and for a while."""
        index = 0
        while len(self._running) < self._max_batch and index < min(len(self._queue), LOOK_AHEAD):
            job = self._queue[index]
            if self._fits(job):
                del self._queue[index]
                self._running[job.entry.uid] = job
                for earlier in self._queue[:index]:
                    earlier.passed += 1
            elif job.passed >= PASSES:
                return
            else:
                index += 1

    def _fits(self, job: _Job) -> bool:
        taken = sum(
            other.asks.tokens
            for other in self._running.values()
            if other.asks.shape == job.asks.shape and not other.drawn
        )
        return not taken or taken + job.asks.tokens <= self._budget

    def _choose(self, work: _Work, jobs: list[_Job]) -> list[_Job]:
        """Texts are short: all that wait are encoded together. Pictures take their time: where others wait for that,
        those of one request are encoded, and one is decoded; else all, and a few of one shape."""
        waited_for = any(job.work != work for job in self._running.values())
        if work == "encode":
            brought = [job for job in jobs if job.asks.pictures]
            return [job for job in jobs if job not in brought[1:]] if waited_for else jobs
        if work == "decode":
            first = jobs[0].asks
            most = min(DECODES, self._budget // first.tokens)
            if most < 2 or waited_for:
                return jobs[:1]
            return [job for job in jobs if job.asks.shape == first.shape][:most]
        longest = max(jobs, key=lambda job: job.waited)
        shape = longest.asks.shape if longest.waited else _most_common(jobs)
        for job in jobs:
            job.waited = 0 if job.asks.shape == shape else job.waited + 1
        return [job for job in jobs if job.asks.shape == shape]

    def gauges(self) -> tuple[tuple[str, int], ...]:
        tokens = sum(job.asks.tokens for job in self._running.values() if not job.drawn)
        return (
            *super().gauges(),
            ("waiting", len(self._queue)),
            ("running", len(self._running)),
            (LATENT_TOKENS, tokens),
        )

    def _runnable(self, entry: Entry, first: bool) -> None:
        """`size` follows, and puts it into the queue."""

    def _advanced(self, entry: Entry, progress: RowProgress) -> None:
        job, every = self._running[entry.uid], self._running[entry.uid].asks.preview_every
        if job.drawn and (job.work == "decode" or not self._decodes):
            raise ValueError(f"request {entry.uid} has done all its work, but has not ended")
        if job.work != "denoise":
            job.work = "denoise"
        elif job.drawn or (self._decodes and every and progress.units and entry.position % every == 0):
            job.work = "decode"
            # to the back of those who are decoded: first done, first out
            self._running[entry.uid] = self._running.pop(entry.uid)

    def _forget(self, uid: int) -> None:
        self._queue = [job for job in self._queue if job.entry.uid != uid]
        self._running.pop(uid, None)


def _row(job: _Job) -> Row:
    job.entry.in_flight = True
    units = 1 if job.work == "denoise" else 0
    return Row(uid=job.entry.uid, phase=job.work, position=job.entry.position, units=units)


def _most_common(jobs: list[_Job]) -> tuple[int | str, ...]:
    """The shape of most of them; among equals that of the first."""
    shapes = [job.asks.shape for job in jobs]
    return max(shapes, key=shapes.count)
