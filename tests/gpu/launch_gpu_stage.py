"""A stage that holds GPU memory. In a module of its own, since a stage never imports the main one of its parent."""

import os
import time

from stages.config import StageSpec
from stages.events import ProcessReady, StepReport
from stages.worker.channel import Inbox, Outbox

HELD_BYTES = 4 << 30


def hold_memory(spec: StageSpec, inbox: Inbox, outbox: Outbox) -> None:
    import torch

    held = torch.zeros(HELD_BYTES, dtype=torch.uint8, device="cuda")
    facts = (
        ("devices", str(torch.cuda.device_count())),
        ("uuid", str(torch.cuda.get_device_properties(0).uuid)),
        ("threads", str(torch.get_num_threads())),
        ("held", str(held.nbytes)),
    )
    ready = ProcessReady(t_ns=time.monotonic_ns(), pid=os.getpid(), facts=facts)
    outbox.put(StepReport(process=spec.process, seq=0, events=(ready,)))
    inbox.get()
