"""How fast a stage's device is: a process that copies and multiplies, says so, and waits for its end.

It stands in for the worker of a stage (`run_stage`); it loads no model. Its parent, which names it, has no torch.
"""

import os
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from stages.config import StageSpec
from stages.events import ProcessReady, StepReport
from stages.messages import Stop
from stages.worker.channel import Inbox, Outbox

if TYPE_CHECKING:
    import torch

COPY_FACT, MATMUL_FACT = "copy_bytes_per_s", "matmul_flop_per_s"

# Far more than any cache holds, and products large enough to keep all of the device busy.
_GPU_BYTES, _CPU_BYTES = 2 << 30, 256 << 20
_GPU_SIDE, _CPU_SIDE = 8192, 1024


def tell_device_rates(spec: StageSpec, inbox: Inbox, outbox: Outbox) -> None:
    """The medians of a few copies within the device's memory, each byte counted twice, read and written, and of a few
    products of square matrices of the model's dtype, two FLOP for each multiplication."""
    import torch

    torch.set_num_threads(spec.threads)
    device = torch.device("cuda", 0) if spec.devices else torch.device("cpu")
    size, side = (_GPU_BYTES, _GPU_SIDE) if spec.devices else (_CPU_BYTES, _CPU_SIDE)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    factor = torch.randn(side, side, device=device).to(getattr(torch, spec.model.dtype))
    product = torch.empty_like(factor)
    facts = (
        (COPY_FACT, f"{2 * size / seconds(device, lambda: target.copy_(source)):.0f}"),
        (MATMUL_FACT, f"{2 * side**3 / seconds(device, lambda: torch.mm(factor, factor, out=product)):.0f}"),
    )
    ready = ProcessReady(t_ns=time.monotonic_ns(), pid=os.getpid(), facts=facts)
    outbox.put(StepReport(process=spec.process, seq=0, events=(ready,)))
    while not any(isinstance(command, Stop) for command in inbox.get().commands):
        pass


def seconds(device: "torch.device", work: Callable[[], object], times: int = 10) -> float:
    """The median of so many times, after one that does not count."""
    took = []
    for _ in range(times + 1):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            import torch

            torch.cuda.synchronize(device)
        took.append(time.perf_counter() - start)
    return median(took[1:])
