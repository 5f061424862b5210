"""Starts a stage that holds GPU memory, kills it, and says what was seen. Run as a module: DEVICE RUN_ID, a device by
its position among the visible ones.

One JSON object on stdout: what the stage saw of its device, bytes in use on it before, while and after, and whether
this parent has loaded torch or has a CUDA context.
"""

import ctypes
import json
import os
import signal
import sys

import pynvml

from omni_cli.launch.launcher import LocalLauncher
from omni_cli.plan.devices import device_uuid, visible_devices
from stages.events import ProcessReady
from tests.gpu.launch_gpu_stage import hold_memory
from tests.integration.launch_fakes import fake_specs
from tests.integration.launch_plans import Heard, fake_plan


def has_context(device: int) -> bool:
    """Whether this process has the device's primary context, the one that torch and the CUDA runtime use."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    for code in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(handle), device),
        driver.cuDevicePrimaryCtxGetState(handle, ctypes.byref(flags), ctypes.byref(active)),
    ):
        assert code == 0, f"CUDA error {code}"
    return bool(active.value)


def used_bytes(physical: str) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(device_uuid(physical))).used)


def main(device: str, run_id: str) -> None:
    pynvml.nvmlInit()
    physical = visible_devices().devices[int(device)].physical
    seen: dict[str, object] = {"before": used_bytes(physical)}
    heard = Heard()
    specs = fake_specs(run_id, stages=["talker"], devices=(physical,))
    with LocalLauncher(fake_plan(stages=["talker"]), specs, listener=heard, run_stage=hold_memory).start() as running:
        seen["while"] = used_bytes(physical)
        (ready,) = heard.of(ProcessReady)
        assert isinstance(ready, ProcessReady)
        seen |= dict(ready.facts)
        seen["torch"] = "torch" in sys.modules
        os.kill(running.replicas[0].pid, signal.SIGKILL)
    seen["after"] = used_bytes(physical)
    seen["context"] = has_context(int(device))
    seen["expected uuid"] = device_uuid(physical)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
