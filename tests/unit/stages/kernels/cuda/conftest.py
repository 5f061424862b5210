"""The Triton kernels: on a GPU where there is one, else in Triton's interpreter (extra `triton`), else not at all."""

import os

import pytest
import torch

collect_ignore_glob: list[str] = []

if not torch.cuda.is_available():
    # Read when a kernel is defined, so before any of them is imported.
    os.environ["TRITON_INTERPRET"] = "1"

try:
    import triton  # noqa: F401
except ImportError:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
