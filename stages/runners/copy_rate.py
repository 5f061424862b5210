"""How fast the memory of a stage's device is: a process that copies, says so, and waits for its end.

It stands in for the worker of a stage (`run_stage`); it loads no model. Its parent, which names it, has no torch.
"""

import os
import time
from statistics import median
from typing import TYPE_CHECKING

from stages.config import StageSpec
from stages.events import ProcessReady, StepReport
from stages.messages import Stop
from stages.worker.channel import Inbox, Outbox

if TYPE_CHECKING:
    import torch

FACT = "copy_bytes_per_s"

# Far more than any cache holds.
_GPU_BYTES, _CPU_BYTES = 2 << 30, 256 << 20
_TIMES = 10


def tell_copy_rate(spec: StageSpec, inbox: Inbox, outbox: Outbox) -> None:
    """The median of a few copies within the device's memory; each byte counts twice, read and written."""
    import torch

    torch.set_num_threads(spec.threads)
    device = torch.device("cuda", 0) if spec.devices else torch.device("cpu")
    size = _GPU_BYTES if spec.devices else _CPU_BYTES
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    rates = sorted(_copy(source, target) for _ in range(_TIMES + 1))
    facts = ((FACT, f"{median(rates):.0f}"),)
    ready = ProcessReady(t_ns=time.monotonic_ns(), pid=os.getpid(), facts=facts)
    outbox.put(StepReport(process=spec.process, seq=0, events=(ready,)))
    while not any(isinstance(command, Stop) for command in inbox.get().commands):
        pass


def _copy(source: "torch.Tensor", target: "torch.Tensor") -> float:
    start = time.perf_counter()
    target.copy_(source)
    if source.is_cuda:
        import torch

        torch.cuda.synchronize(source.device)
    return 2.0 * int(source.nbytes) / (time.perf_counter() - start)
