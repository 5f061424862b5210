"""A step of fixed shapes, as one CUDA graph per bucket of rows, captured before the stage is ready.

The step reads and writes buffers that stay where they are; who runs it fills the inputs of a bucket, and pads the rows
that are left over. Without graphs the same step is run operation by operation. Knows no model and no requests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

Inputs = TypeVar("Inputs")
Outputs = TypeVar("Outputs")

# Runs before the capture: the first compiles and chooses kernels, the second shows that nothing is left to be done.
_WARM_UP_RUNS = 2


def batch_buckets(max_rows: int) -> tuple[int, ...]:
    """Numbers of rows to capture for up to `max_rows`: dense where a padded row costs most."""
    steps = [*(n for n in (1, 2, 4) if n < max_rows), *range(8, min(max_rows, 32), 4), *range(32, max_rows, 16)]
    return (*(n for n in steps if n < max_rows), max_rows)


@dataclass(slots=True)
class Bucket(Generic[Inputs, Outputs]):
    """The buffers of one bucket. `outputs` hold what the last run left, until the next run of any bucket."""

    rows: int
    inputs: Inputs
    outputs: Outputs | None = None
    graph: Any = None


class BucketGraphs(Generic[Inputs, Outputs]):
    """`step` for each of `buckets`. It must neither synchronise nor read values back, and allocate by torch alone.

    `inputs(rows)` makes the input buffers of a bucket, filled so that a step over them is sound.
    """

    def __init__(
        self,
        step: Callable[[Inputs], Outputs],
        inputs: Callable[[int], Inputs],
        *,
        buckets: Sequence[int],
        device: torch.device,
        graphs: bool,
    ) -> None:
        self._step = step
        self._buckets = [Bucket[Inputs, Outputs](rows, inputs(rows)) for rows in sorted(buckets)]
        self._device = device
        self._graphs = graphs and device.type == "cuda"
        self.replays = 0
        self.eager_runs = 0

    @property
    def captured(self) -> bool:
        """Whether runs are replays of graphs."""
        return self._graphs and all(bucket.graph is not None for bucket in self._buckets)

    def capture(self) -> None:
        """Captures every bucket, the largest first, into one memory pool; without graphs, runs each once."""
        if not self._graphs:
            for bucket in self._buckets:
                bucket.outputs = self._step(bucket.inputs)
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
        torch.cuda.current_stream(self._device).wait_stream(stream)

    def bucket(self, rows: int) -> Bucket[Inputs, Outputs]:
        """The smallest bucket that holds `rows`. Raises ValueError if none does."""
        for bucket in self._buckets:
            if bucket.rows >= rows:
                return bucket
        raise ValueError(f"a step of {rows} rows was asked for, the largest bucket holds {self._buckets[-1].rows}")

    def run(self, bucket: Bucket[Inputs, Outputs]) -> Outputs:
        """One step over the bucket's inputs, on the current stream; returns its outputs without waiting for them."""
        if bucket.graph is None:
            self.eager_runs += 1
            bucket.outputs = self._step(bucket.inputs)
        else:
            self.replays += 1
            bucket.graph.replay()
        if bucket.outputs is None:
            raise RuntimeError("a bucket was run before it was captured")
        return bucket.outputs
