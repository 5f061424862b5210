"""Fixtures of the Qwen3-Omni family's unit tests."""

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

from stages.models.qwen3_omni.tiny import tiny_checkpoint


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint. Read-only: a test that changes a file works on a copy."""
    return tiny_checkpoint(tmp_path_factory.mktemp("omni_cache"))
