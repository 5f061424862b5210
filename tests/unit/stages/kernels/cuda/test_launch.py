"""Launches overlap only where GPUs have the instruction that waits."""

import pytest
import torch
from triton import knobs

from stages.kernels.cuda.launch import programs


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (12, 0)])
def test_older_gpus_launch_one_kernel_behind_the_other(monkeypatch: pytest.MonkeyPatch, capability) -> None:
    given = {}
    kernel = {(2, 3): lambda *_, **options: given.update(options)}
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 100 + capability[0])  # of no real one
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    programs(kernel, 2, 3)(torch.zeros(1), DIM=4)
    overlap = capability >= (9, 0)
    assert given == {"DIM": 4, "PDL": overlap, **({"launch_pdl": True} if overlap else {})}
