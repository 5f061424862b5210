"""The tiny Qwen-Image, diffusers' pipeline over it, and a stage that draws with it."""

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

from stages.models.cache import built_once
from stages.models.qwen_image import tiny
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
