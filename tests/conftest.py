"""One thread for every numeric library, here and in the stage processes that tests spawn. Soak tests only if asked.

Rings live in a folder of this process's own, so that what is found in it was left by its own tests.
"""

import atexit
import os
import re
import shutil
import signal
import tempfile
from contextlib import suppress
from typing import Any

import pytest

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background, and all it starts, ignores it
os.environ["OMNI_SHM_DIR"] = tempfile.mkdtemp(prefix="omni-tests-", dir="/dev/shm")
atexit.register(shutil.rmtree, os.environ["OMNI_SHM_DIR"], ignore_errors=True)

with suppress(ImportError):  # tests/gpu does without
    from hypothesis import settings

    # A slow machine is no failure; what is drawn is drawn again the next time, but for soak tests.
    settings.register_profile("omni", deadline=None, derandomize=not os.environ.get("OMNI_SOAK"))
    settings.load_profile("omni")
pytest.register_assert_rewrite("tests.integration.cli")


# Files that share what is costly to start.
_TOGETHER = re.compile(r"tests/server/|tests/integration/test_qwen")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A process of several takes a whole file at a time, or all of those that share."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            shared = _TOGETHER.match(nodeid)
            return shared[0] if shared else super()._split_scope(nodeid)

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("OMNI_SOAK"):
        return
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.skip(reason="soak: set OMNI_SOAK=1"))
