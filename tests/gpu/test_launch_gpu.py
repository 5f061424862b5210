"""A stage on a GPU: the device it was given, nothing of CUDA in the parent, and no memory left by a killed one."""

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from omni_cli.plan.devices import visible_devices
from tests.gpu.launch_gpu_stage import HELD_BYTES

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
DEVICES = len(visible_devices())


@pytest.mark.skipif(not DEVICES, reason="needs a GPU")
def test_a_killed_stage_leaves_no_memory_and_the_parent_opens_no_context() -> None:
    device = DEVICES - 1  # the last: with several, a child that sees all of them would take the first
    command = [sys.executable, "-m", "tests.gpu.launch_gpu_parent", str(device), uuid.uuid4().hex[:8]]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout.splitlines()[-1])
    assert seen["devices"] == "1"
    assert seen["uuid"].removeprefix("GPU-") == seen["expected uuid"].removeprefix("GPU-")
    assert seen["threads"] == "1"
    assert seen["while"] - seen["before"] >= HELD_BYTES
    assert seen["after"] - seen["before"] < 64 << 20
    assert not seen["context"]
    assert not seen["torch"]
