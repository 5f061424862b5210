"""A step of fixed shapes, as one CUDA graph per bucket of sizes, captured before the stage is ready.

The step reads and writes buffers that stay where they are; who runs it fills the inputs of a bucket, and pads what is
left over. Without graphs the same step is run operation by operation. Knows no model and no requests.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy.typing as npt
import torch

Inputs = TypeVar("Inputs")
Outputs = TypeVar("Outputs")
Size = tuple[int, ...]

# Runs before the capture: the first compiles and chooses kernels, the second shows that nothing is left to be done.
_WARM_UP_RUNS = 2
_ALIGNED = 16  # bytes, of each buffer in a staging area


def batch_buckets(max_rows: int) -> tuple[int, ...]:
    """Numbers of rows to capture for up to `max_rows`: dense where a padded row costs most."""
    steps = [*(n for n in (1, 2, 4) if n < max_rows), *range(8, min(max_rows, 32), 4), *range(32, max_rows, 16)]
    return (*(n for n in steps if n < max_rows), max_rows)


@dataclass(slots=True)
class Paths:
    """How often the current step was a replay of a graph, and how often it ran operation by operation."""

    replays: int = 0
    eager: int = 0

    def take(self) -> tuple[tuple[str, int], ...]:
        """The counts, for the step event; from now on those of the next step."""
        found = (("graph_replays", self.replays), ("eager_runs", self.eager))
        self.replays = self.eager = 0
        return found


class Staging:
    """Named buffers of fixed shapes on a device, and their twins on the host: filled there, sent in one copy."""

    def __init__(self, buffers: Mapping[str, tuple[torch.dtype, Size]], device: torch.device) -> None:
        places, total = {}, 0
        for name, (dtype, shape) in buffers.items():
            places[name] = slice(total, total + math.prod(shape) * dtype.itemsize)
            total = -(-places[name].stop // _ALIGNED) * _ALIGNED
        self._device = torch.zeros(total, dtype=torch.uint8, device=device)
        self._host = torch.zeros(total, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._sent: Any = torch.cuda.Event() if device.type == "cuda" else None

        def views(memory: torch.Tensor) -> dict[str, torch.Tensor]:
            return {name: memory[places[name]].view(dtype).view(shape) for name, (dtype, shape) in buffers.items()}

        self.tensors: Mapping[str, torch.Tensor] = views(self._device)
        self._arrays = {name: twin.numpy() for name, twin in views(self._host).items()}

    def arrays(self) -> Mapping[str, npt.NDArray[Any]]:
        """The host's buffers, once they may be written again. They keep what was sent last."""
        if self._sent is not None:
            self._sent.synchronize()
        return self._arrays

    def send(self) -> None:
        """To the device, on the current stream; does not wait."""
        self._device.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record()


@dataclass(slots=True)
class Bucket(Generic[Inputs, Outputs]):
    """The buffers of one bucket. `outputs` hold what the last run left, until the next run of any bucket."""

    size: Size
    inputs: Inputs
    outputs: Outputs | None = None
    graph: Any = None


class BucketGraphs(Generic[Inputs, Outputs]):
    """`step` for each of `buckets`. It must neither synchronise nor read values back, and allocate by torch alone.

    `inputs(size)` makes the input buffers of a bucket, filled so that a step over them is sound. `paths` counts runs.
    """

    def __init__(
        self,
        step: Callable[[Inputs], Outputs],
        inputs: Callable[[Size], Inputs],
        *,
        buckets: Iterable[Size],
        device: torch.device,
        paths: Paths,
    ) -> None:
        self._step = step
        sizes = sorted(set(buckets), key=lambda size: (math.prod(size), size))
        self._buckets = [Bucket[Inputs, Outputs](size, inputs(size)) for size in sizes]
        self._device = device
        self._paths = paths

    @property
    def captured(self) -> bool:
        """Whether runs are replays of graphs."""
        return bool(self._buckets) and all(bucket.graph is not None for bucket in self._buckets)

    def capture(self) -> None:
        """Captures every bucket, the largest first, into one memory pool; without a GPU, does nothing."""
        if self._device.type != "cuda":
            return
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        for bucket in reversed(self._buckets):
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP_RUNS):
                    self._step(bucket.inputs)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                bucket.outputs = self._step(bucket.inputs)
            bucket.graph = graph
        for bucket in self._buckets:
            bucket.graph.replay()  # the first one takes longer: the graph goes to the device
        torch.cuda.current_stream(self._device).wait_stream(stream)

    def find(self, *needed: int) -> Bucket[Inputs, Outputs] | None:
        """The smallest bucket that holds a step of this size, if any does."""
        for bucket in self._buckets:
            if all(room >= count for room, count in zip(bucket.size, needed, strict=True)):
                return bucket
        return None

    def run(self, bucket: Bucket[Inputs, Outputs]) -> Outputs:
        """One step over the bucket's inputs, on the current stream; returns its outputs without waiting for them."""
        if bucket.graph is None:
            self._paths.eager += 1
            return self._step(bucket.inputs)
        self._paths.replays += 1
        bucket.graph.replay()
        if bucket.outputs is None:
            raise RuntimeError("a bucket has a graph without outputs")
        return bucket.outputs
