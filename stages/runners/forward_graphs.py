"""CUDA graphs of a module's forwards, captured as they come. Of a composition (size, rows, lengths of texts) the
first forward runs operation by operation, and leaves kernels compiled and caches filled; the second is captured, and
replayed from then on. Knows no model and no requests, and must not change a result: a replay runs the same kernels.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch

from stages.messages import ImageParams
from stages.runners.graphs import Paths
from stages.runners.stepper import Condition

log = logging.getLogger("omni.graphs")

MOST = 16
"""Compositions that are remembered; then the oldest is forgotten, however often it came. What a model itself keeps of a
composition on the device (rotations) has to outlive the graphs that read it."""

_PARTS = ("embeds", "pooled", "pictures", "length")  # tensors of a condition

Given: TypeAlias = torch.Tensor | Sequence[Condition]
Forward = Callable[..., torch.Tensor]
"""`Stepper.predict` of one transformer, or another function of an image's size and of what is `Given`."""


@dataclass(frozen=True, slots=True)
class Captured:
    """`replay` writes `output` anew, on the current stream; `pool` is the memory that graphs of one device share."""

    replay: Callable[[], None]
    output: torch.Tensor
    pool: Any


Capture = Callable[[Callable[[], torch.Tensor], Any], Captured]
"""Records what a step launches, without running it, into a pool or a new one (None). Raises torch.OutOfMemoryError."""


def capture_on(device: torch.device) -> Capture:
    """On this device, which is the calling thread's own when it captures; what other threads do meanwhile is none of
    its business."""
    stream = torch.cuda.Stream(device)

    def capture(step: Callable[[], torch.Tensor], pool: Any) -> Captured:
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            torch.cuda.current_blas_handle()  # its workspace outlives the pool, and so must not lie in there
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                output = step()
            finally:
                graph.capture_end()
        return Captured(graph.replay, output, graph.pool())

    return capture


@dataclass(slots=True)
class _Composition:
    """`inputs` are where the graph reads: all tensors that are given. None before there is one."""

    inputs: Sequence[torch.Tensor] = ()
    captured: Captured | None = None


class ForwardGraphs:
    """`forward` of one module, of which nothing depends on values but what it computes on the device. To be called by
    one thread; `paths` counts its calls."""

    def __init__(self, forward: Forward, capture: Capture) -> None:
        self.paths = Paths()
        self._forward = forward
        self._capture = capture
        self._known: dict[object, _Composition] = {}
        self._full = False

    def forget(self) -> None:
        self._known.clear()

    def __call__(self, image: ImageParams, *given: Given) -> torch.Tensor:
        """As `forward`. What is returned may be overwritten by the next call."""
        inputs = _tensors(given)
        form = tuple((each.shape, each.dtype) for each in inputs)
        edited = image.pictures if image.strength is None else ()
        key = (image.width, image.height, image.frames, edited, form)
        known = self._known.get(key)
        if known is None:
            if len(self._known) == MOST:
                del self._known[next(iter(self._known))]
            self._known[key] = _Composition()
        elif known.captured is not None:
            for mine, theirs in zip(known.inputs, inputs, strict=True):
                mine.copy_(theirs)
        elif not self._full:
            self._record(known, image, inputs, given)
        if known is None or known.captured is None:
            return self._eager(image, *given)
        self.paths.replays += 1
        known.captured.replay()
        return known.captured.output

    def _eager(self, *step: Any) -> torch.Tensor:
        """Once more if graphs have the memory that it lacks: such a step fails with graphs only."""
        self.paths.eager += 1
        try:
            return self._forward(*step)
        except torch.OutOfMemoryError as error:
            if all(each.captured is None for each in self._known.values()):
                raise
            self._give_up(error)
        return self._forward(*step)

    def _give_up(self, error: Exception) -> None:
        self._full = True
        self.forget()
        log.warning("no memory for CUDA graphs, all runs operation by operation from now on: %s", error)

    def _record(
        self, known: _Composition, image: ImageParams, inputs: Sequence[torch.Tensor], given: Sequence[Given]
    ) -> None:
        pool = next((each.captured.pool for each in self._known.values() if each.captured is not None), None)
        known.inputs = [each.clone() for each in inputs]
        try:
            known.captured = self._capture(partial(self._forward, image, *_with(given, known.inputs)), pool)
        except torch.OutOfMemoryError as error:
            self._give_up(error)


def _tensors(given: Sequence[Given]) -> list[torch.Tensor]:
    """All of each, in order."""
    found: list[torch.Tensor] = []
    for each in given:
        if isinstance(each, torch.Tensor):
            found.append(each)
        else:
            found += [part for text in each for name in _PARTS if (part := getattr(text, name)) is not None]
    return found


def _with(given: Sequence[Given], tensors: Sequence[torch.Tensor]) -> list[Given]:
    """What was given with other tensors, in the order of `_tensors`."""
    left = iter(tensors)

    def other(text: Condition) -> Condition:
        return replace(text, **{name: next(left) for name in _PARTS if getattr(text, name) is not None})

    return [next(left) if isinstance(each, torch.Tensor) else [other(text) for text in each] for each in given]
