"""The tiny checkpoint and transformers' own answers to it, once for all; and stages that need not import anything."""

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omni_cli.launch import process
from tests.integration.cli import ROOT


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from stages.models.qwen3_omni.tiny import tiny_checkpoint

    return tiny_checkpoint(tmp_path_factory.mktemp("omni_cache"))


@pytest.fixture(scope="session")
def reference(folder: Path) -> Any:
    from tests.integration.qwen3_omni_reference import Reference

    return Reference.load(folder)


@pytest.fixture(scope="session")
def _fork_server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.integration.warm_stage"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("HF_HUB_OFFLINE", "1")
        multiprocessing.forkserver.ensure_running()
    return context


@pytest.fixture(scope="module")
def warm(_fork_server: Any) -> Iterator[None]:
    """Stages start in a tenth of a second instead of four. For tests of what they answer, not of how they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "multiprocessing", SimpleNamespace(get_context=lambda _: _fork_server))
        yield
