"""Predicts the noise of a denoising step's requests, with and without their prompts, in as few forwards as it can.

Does not step: what follows from a prediction is the runner's.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from stages.config import StageTuning
from stages.messages import ImageParams
from stages.runners.compiled_blocks import compile_blocks, compiled, configure_compiler
from stages.runners.forward_graphs import ForwardGraphs, capture_on
from stages.runners.step_cache import StepCache
from stages.runners.stepper import Condition, Stepper

log = logging.getLogger("omni.graphs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where a request stands: `latents` [1, ...], `timestep` as `Canvas.time` has it, and its prompt and, if guided,
    its negative prompt."""

    uid: int
    image: ImageParams
    latents: torch.Tensor
    timestep: torch.Tensor
    conditions: tuple[Condition, ...]


Prediction = tuple[torch.Tensor, torch.Tensor | None]
"""With the prompt and, of who is guided, with the negative prompt, each [1, ...]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Rows of one forward of one transformer. `side` 1 is that of the negative prompts, 0 of the others or of all."""

    transformer: Any
    side: int
    uid: int
    image: ImageParams
    latents: list[torch.Tensor]
    timesteps: list[torch.Tensor]
    conditions: list[Condition]


class Predictor:
    """With `joined`, both predictions of all requests are rows of one forward; else there are two. Where the stepper
    has a second transformer, that predicts with the negative prompts on its own device, at the same time. `backend` is
    what compiles."""

    def __init__(self, stepper: Stepper, *, joined: bool, backend: str) -> None:
        self._stepper = stepper
        self._joined = joined
        self._backend = backend
        self._graphs: dict[int, ForwardGraphs] = {}  # of the transformer with this id
        self._counters: dict[str, int] = {}
        self._compiled: int | None = None  # codes; None before the end of the warm-up
        self._cache: StepCache | None = None
        self._second: ThreadPoolExecutor | None = None
        self.compiles = False

    def prepare(self, tuning: StageTuning) -> None:
        """Behind the stepper's loading."""
        transformers = self._stepper.transformers
        self.compiles = tuning.compile == "blocks" and bool(transformers)
        if len(transformers) > 1:
            # A thread of its own: else the second device would wait until all work of the first one is launched.
            self._second = ThreadPoolExecutor(1, "second-device", configure_compiler)
        if self.compiles:
            configure_compiler()
            for transformer in transformers:
                compile_blocks(transformer, self._backend)
        if tuning.step_cache == "first_block" and transformers:
            self._cache = StepCache(transformers)
        elif tuning.graphs and self._stepper.recordable:
            for transformer in transformers:
                forward = partial(self._stepper.predict, transformer)
                self._graphs[id(transformer)] = ForwardGraphs(forward, capture_on(_device(transformer)))
        elif tuning.graphs and transformers:
            log.info("no CUDA graphs of denoising steps: in a step this transformer copies from the host")

    def close(self) -> None:
        if self._second is not None:
            self._second.shutdown()

    def warmed_up(self) -> None:
        """What is compiled from now on, requests wait for."""
        self._compiled = compiled() if self.compiles else None
        for graphs in self._graphs.values():
            graphs.forget()

    def counters(self) -> dict[str, int]:
        """Of the last step: its `forwards` and how many of them the cache made short (`forwards_skipped`), the
        `forward_rows` in all of them, how many were replays of a graph, and how many codes were `compiled` for it that
        the warm-up has not met."""
        return dict(self._counters)

    def loss(self, uid: int) -> str:
        """What inexact predictions have cost the request; empty if it had none."""
        return "" if self._cache is None else self._cache.report(uid)

    def forget(self, uid: int) -> None:
        if self._cache is not None:
            self._cache.forget(uid)

    def predict(self, moments: Sequence[Moment]) -> list[Prediction]:
        """All moments are of one shape."""
        skipped = 0 if self._cache is None else self._cache.skipped
        batches = self._batches(moments)
        rows = self._run(batches)
        self._counters = {"forwards": len(batches), "forward_rows": len(rows)}
        if self._cache is not None:
            self._counters["forwards_skipped"] = self._cache.skipped - skipped
        for graphs in self._graphs.values():
            for name, count in graphs.paths.take():
                if count:
                    self._counters[name] = self._counters.get(name, 0) + count
        if self._compiled is not None and compiled() > self._compiled:
            self._counters["compiled"] = compiled() - self._compiled
            self._compiled = compiled()
        against = iter(rows[len(moments) :, None])
        return [
            (row, next(against) if moment.image.guided else None)
            for moment, row in zip(moments, rows[: len(moments), None], strict=True)
        ]

    def _batches(self, moments: Sequence[Moment]) -> list[_Batch]:
        """The forwards of a step: their rows are the prompts' in order, and then the negative prompts'."""
        prompts = [(moment, moment.conditions[0]) for moment in moments]
        negatives = [(moment, moment.conditions[1]) for moment in moments if moment.image.guided]
        if self._cache is not None:
            return [self._batch(side, [one]) for side, each in enumerate((prompts, negatives)) for one in each]
        if not negatives or (self._joined and self._second is None):
            return [self._batch(0, prompts + negatives)]
        return [self._batch(0, prompts), self._batch(1, negatives)]

    def _batch(self, side: int, rows: list[tuple[Moment, Condition]]) -> _Batch:
        transformers, moments = self._stepper.transformers, [moment for moment, _ in rows]
        return _Batch(
            transformer=transformers[min(side, len(transformers) - 1)],
            side=side,
            uid=moments[0].uid,
            image=moments[0].image,
            latents=[moment.latents for moment in moments],
            timesteps=[moment.timestep for moment in moments],
            conditions=[condition for _, condition in rows],
        )

    def _run(self, batches: list[_Batch]) -> torch.Tensor:
        if self._second is None:
            return torch.cat([self._forward(batch) for batch in batches])
        # Copied before the first device gets its work, behind which they would wait.
        theirs = [_moved(batch) for batch in batches if batch.side]
        later = self._second.submit(self._elsewhere, theirs)
        if self.compiles and self._compiled is None:
            wait([later])  # while one thread compiles, another may not call compiled code
        mine = [self._forward(batch) for batch in batches if not batch.side]
        return torch.cat([*mine, *(rows.to(mine[0].device) for rows in later.result())])

    def _elsewhere(self, batches: list[_Batch]) -> list[torch.Tensor]:
        """In a thread, which has neither the caller's mode nor its device."""
        if batches and batches[0].latents[0].is_cuda:
            torch.cuda.set_device(batches[0].latents[0].device)
        with torch.inference_mode():
            return [self._forward(batch) for batch in batches]

    def _forward(self, batch: _Batch) -> torch.Tensor:
        latents, timesteps = torch.cat(batch.latents), torch.stack(batch.timesteps)
        conditions = self._stepper.fitted(batch.image, batch.conditions)
        if graphs := self._graphs.get(id(batch.transformer)):
            return graphs(batch.image, latents, timesteps, conditions)
        call = partial(self._stepper.predict, batch.transformer, batch.image, latents, timesteps, conditions)
        return call() if self._cache is None else self._cache.forward(batch.transformer, batch.uid, batch.side, call)


def _moved(batch: _Batch) -> _Batch:
    """On the device of its transformer."""
    device = _device(batch.transformer)

    def there(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, non_blocking=True)

    return replace(
        batch,
        latents=[there(each) for each in batch.latents],
        timesteps=[there(each) for each in batch.timesteps],
        conditions=[
            replace(
                each,
                embeds=there(each.embeds),
                pooled=None if each.pooled is None else there(each.pooled),
                pictures=None if each.pictures is None else there(each.pictures),
            )
            for each in batch.conditions
        ],
    )


def _device(transformer: Any) -> torch.device:
    device: torch.device = next(transformer.parameters()).device
    return device
