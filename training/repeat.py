"""One optimisation step, repeated: on a GPU it is recorded once and replayed, so that the host has nothing to do."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch

_WARM_STEPS = 3  # before recording: memory is allotted, and what is compiled is compiled
_AHEAD = 2  # replays that may wait in the queue: more, and the host's clock says nothing of the device


class Step:
    """`loss` draws its own batch and gives one value, or several whose sum is made small; `record` (a GPU only) asks
    for the replay, for which nothing in `loss` may wait for the device or copy from the host. What `loss` is called
    with is fixed in a recording: there is one for each. A step whose gradients are not finite changes no parameter and
    counts in `skipped`, a tensor."""

    def __init__(
        self,
        loss: Callable[..., Any],
        parameters: Iterable[Any],
        *,
        device: str,
        record: bool,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.01,
        norm: float = 1.0,
    ) -> None:
        self._loss, self._parameters, self._record = loss, list(parameters), record and device == "cuda"
        self._rate, self._norm, self.skipped = torch.zeros((), device=device), norm, torch.zeros((), device=device)
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=self._rate,
            betas=betas,
            weight_decay=weight_decay,
            fused=True,
            capturable=device == "cuda",
        )
        self._graphs: dict[tuple[Hashable, ...], tuple[Any, Any]] = {}
        self._ends = [torch.cuda.Event() for _ in range(_AHEAD)] if self._record else []

    def __call__(self, rate: float, *given: Hashable) -> Any:
        """The loss of `given`, a tensor that the next call may overwrite. Raises RuntimeError if the step cannot be
        recorded."""
        self._rate.fill_(rate)
        if not self._record:
            return self._run(given)
        if given not in self._graphs:
            self._graphs[given] = self._recorded(given)
        graph, found = self._graphs[given]
        end = self._ends.pop(0)
        end.synchronize()
        graph.replay()
        end.record()
        self._ends.append(end)
        return found

    def _run(self, given: tuple[Hashable, ...]) -> Any:
        self._optimizer.zero_grad()
        loss = self._loss(*given)
        loss.sum().backward()
        length = torch.nn.utils.clip_grad_norm_(self._parameters, self._norm)
        self._optimizer.found_inf = (~length.isfinite()).float()  # the fused step asks for it, on the device
        self.skipped += self._optimizer.found_inf
        self._optimizer.step()
        return loss.detach()

    def _recorded(self, given: tuple[Hashable, ...]) -> tuple[Any, Any]:
        """https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture; replays follow each other, so
        that all share the memory of the first."""
        pool = next((graph.pool() for graph, _ in self._graphs.values()), None)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_STEPS):
                self._run(given)
        torch.cuda.current_stream().wait_stream(side)
        self._optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            found = self._run(given)
        return graph, found


def half(device: str) -> Any:
    """bfloat16 where it is fast. Its cache of cast weights would outlive a recording."""
    kind = torch.device(device).type
    return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda", cache_enabled=False)
