"""Hands tensors over that the device is still at work on when they are put."""

import torch

from stages.config import StageSpec
from stages.runners.handover import filled, run_handover
from stages.worker.channel import Inbox, Outbox


def run_while_busy(spec: StageSpec, inbox: Inbox, outbox: Outbox) -> None:
    def make(number: int, nbytes: int, device: torch.device) -> torch.Tensor:
        heavy = torch.ones(4096, 4096, device=device)
        for _ in range(10):
            heavy = heavy @ heavy * 0
        return filled(number, nbytes, device)

    run_handover(spec, inbox, outbox, make)
