"""One attempt at a task: what has come of it so far, and how it ended."""

from collections.abc import Callable, Mapping

from omni_cli.artifacts.records import Status
from omni_cli.batch.task import Task
from omni_cli.errors import OmniError
from omni_cli.runtime.outputs import OmniOutput, OutputAssembler
from omni_cli.runtime.request import OmniRequest, OutputChunk, RequestError


class Attempt:
    """`clock` in seconds. `metrics` has `total_s`, and for each output `first_<output>_s`, the first piece that holds
    something: from when the engine was asked until it is here, so a little more than the trace's TTFT and TTFA."""

    def __init__(self, task: Task, clock: Callable[[], float]) -> None:
        self.task = task
        self.status: Status = "failed"
        self.error: OmniError | None = None
        self.seed: int | None = None
        self.metrics: dict[str, float] = {}
        self._assembler = OutputAssembler(task.outputs)
        self.outputs: Mapping[str, OmniOutput] = self._assembler.outputs
        self._clock = clock
        self._start_s = clock()

    def start(self, request: OmniRequest) -> None:
        self.seed = request.seed
        self._start_s = self._clock()

    def add(self, chunk: OutputChunk) -> None:
        name = f"first_{chunk.modality}_s"
        if chunk.units and (chunk.text or chunk.payload is not None) and name not in self.metrics:
            self.metrics[name] = self._clock() - self._start_s
        self._assembler.add(chunk)

    def finish(self) -> None:
        self._end("finished")

    def fail(self, error: OmniError) -> None:
        self.error = error
        cancelled = isinstance(error, RequestError) and error.end.outcome == "cancelled"
        self._end("cancelled" if cancelled else "failed")

    def cancel(self) -> None:
        self._end("cancelled")

    def _end(self, status: Status) -> None:
        self.status = status
        self.metrics["total_s"] = self._clock() - self._start_s
