"""One optimisation step, repeated: on a GPU it is recorded once and replayed, so that the host has nothing to do."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

_WARM_STEPS = 3  # before recording: memory is allotted, and what is compiled is compiled
_AHEAD = 2  # replays that may wait in the queue: more, and the host's clock says nothing of the device


class Step:
    """`loss` draws its own batch and gives a scalar; `record` (a GPU only) asks for the replay, for which nothing in
    `loss` may wait for the device or copy from the host."""

    def __init__(
        self,
        loss: Callable[[], Any],
        parameters: Iterable[Any],
        *,
        device: str,
        record: bool,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.01,
    ) -> None:
        self._loss, self._parameters, self._record = loss, list(parameters), record and device == "cuda"
        self._rate = torch.zeros((), device=device)
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=self._rate,
            betas=betas,
            weight_decay=weight_decay,
            fused=device == "cuda",
            capturable=device == "cuda",
        )
        self._graph: Any = None
        self._ends: list[Any] = []
        self._found: Any = None

    def __call__(self, rate: float) -> Any:
        """The loss, a tensor that the next call may overwrite. Raises RuntimeError if the step cannot be recorded."""
        self._rate.fill_(rate)
        if not self._record:
            return self._run()
        if self._graph is None:
            self._found = self._recorded()
        end = self._ends.pop(0)
        end.synchronize()
        self._graph.replay()
        end.record()
        self._ends.append(end)
        return self._found

    def _run(self) -> Any:
        self._optimizer.zero_grad()
        loss = self._loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        return loss.detach()

    def _recorded(self) -> Any:
        """https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture"""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_STEPS):
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        self._optimizer.zero_grad()
        self._graph = torch.cuda.CUDAGraph()
        self._ends = [torch.cuda.Event() for _ in range(_AHEAD)]
        with torch.cuda.graph(self._graph):
            return self._run()


def half(device: str) -> Any:
    """bfloat16 where it is fast. Its cache of cast weights would outlive a recording."""
    kind = torch.device(device).type
    return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda", cache_enabled=False)
