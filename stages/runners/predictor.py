"""Predicts the noise of a denoising step's requests, with and without their prompts, in as few forwards as it can.

Does not step: what follows from a prediction is the runner's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from stages.config import StageTuning
from stages.messages import ImageParams
from stages.runners.compiled_blocks import compile_blocks, compiled
from stages.runners.step_cache import StepCache
from stages.runners.stepper import Condition, Stepper


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where a request stands: `latents` [1, ...], `timestep` [], and its prompt and, if guided, its negative prompt."""

    uid: int
    image: ImageParams
    latents: torch.Tensor
    timestep: torch.Tensor
    conditions: tuple[Condition, ...]


Prediction = tuple[torch.Tensor, torch.Tensor | None]
"""With the prompt and, of who is guided, with the negative prompt, each [1, ...]."""
_Side = tuple[Moment, Condition]


class Predictor:
    """With `joined`, both predictions of all requests are rows of one forward; else there are two. `backend` is
    what compiles."""

    def __init__(self, stepper: Stepper, *, joined: bool, backend: str) -> None:
        self._stepper = stepper
        self._joined = joined
        self._backend = backend
        self._counters: dict[str, int] = {}
        self._compiled = 0
        self._cache: StepCache | None = None
        self.compiles = False

    def prepare(self, tuning: StageTuning) -> None:
        """Behind the stepper's loading."""
        transformer = self._stepper.transformer
        if transformer is not None and tuning.compile == "blocks":
            self.compiles = True
            compile_blocks(transformer, self._backend)
        if transformer is not None and tuning.step_cache == "first_block":
            self._cache = StepCache(transformer)

    def warmed_up(self) -> None:
        """What is compiled from now on, requests wait for."""
        self._compiled = compiled()

    def counters(self) -> dict[str, int]:
        """Of the last step: its `forwards` and how many of them the cache made short (`forwards_skipped`), the
        `forward_rows` in all of them, and how many codes were `compiled` for it that the warm-up has not met."""
        return dict(self._counters)

    def loss(self, uid: int) -> str:
        """What inexact predictions have cost the request; empty if it had none."""
        return "" if self._cache is None else self._cache.report(uid)

    def forget(self, uid: int) -> None:
        if self._cache is not None:
            self._cache.forget(uid)

    def predict(self, moments: Sequence[Moment]) -> list[Prediction]:
        """All moments are of one shape."""
        prompts = [(moment, moment.conditions[0]) for moment in moments]
        negatives = [(moment, moment.conditions[1]) for moment in moments if moment.image.guided]
        batches = [prompts + negatives] if self._joined or not negatives else [prompts, negatives]
        self._counters = {"forwards": len(batches), "forward_rows": len(prompts) + len(negatives)}
        if self._cache is None:
            rows = torch.cat([self._forward(batch) for batch in batches])
        else:
            rows = self._cached(self._cache, prompts, negatives)
        if self.compiles and compiled() > self._compiled:
            self._counters["compiled"] = compiled() - self._compiled
            self._compiled = compiled()
        against = iter(rows[len(prompts) :, None])
        return [
            (row, next(against) if moment.image.guided else None)
            for moment, row in zip(moments, rows[: len(prompts), None], strict=True)
        ]

    def _cached(self, cache: StepCache, prompts: list[_Side], negatives: list[_Side]) -> torch.Tensor:
        before = cache.skipped
        found = [
            cache.forward(one[0].uid, side, partial(self._forward, [one]))
            for side, sides in enumerate((prompts, negatives))
            for one in sides
        ]
        self._counters |= {"forwards": len(found), "forwards_skipped": cache.skipped - before}
        return torch.cat(found)

    def _forward(self, sides: list[_Side]) -> torch.Tensor:
        moments, conditions = zip(*sides, strict=True)
        latents = torch.cat([moment.latents for moment in moments])
        timesteps = torch.stack([moment.timestep for moment in moments])
        return self._stepper.predict(moments[0].image, latents, timesteps, conditions)
