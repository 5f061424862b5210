"""The tiny Qwen-Image, diffusers' pipeline over it, and a stage that draws with it."""

import os
from pathlib import Path

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from stages.models.cache import built_once
from stages.models.qwen_image import tiny
from stages.runners.forward_graphs import Captured
from tests.unit.stages.models.qwen_image.studio import Studio


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read-only: a test that changes a file works on a copy."""
    return built_once(tmp_path_factory.mktemp("omni_cache"), tiny.NAME, tiny.write)


@pytest.fixture(scope="session")
def reference(tiny_folder):
    from diffusers import QwenImagePipeline

    pipeline = QwenImagePipeline.from_pretrained(tiny_folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="session")
def studio(tiny_folder) -> Studio:
    return Studio(tiny_folder)


class Recorder:
    """In the place of CUDA graphs: what is replayed runs over the buffers that were there when it was captured, and
    nothing of its result is there before."""

    def __init__(self, device: torch.device, full: bool = False) -> None:
        self.pools: list[object] = []
        self.full = full

    def __call__(self, step, pool):
        if self.full:
            raise torch.OutOfMemoryError("nothing left")
        self.pools.append(pool)
        output = torch.zeros_like(step())
        return Captured(lambda: output.copy_(step()), output, pool or object())


@pytest.fixture
def recorders(monkeypatch):
    """Those of the studios of a test, in order, one a device."""
    made = []

    def capture_on(device):
        made.append(Recorder(device))
        return made[-1]

    monkeypatch.setattr("stages.runners.predictor.capture_on", capture_on)
    return made
