"""Which GPUs a child process could see, read from NVML and CUDA_VISIBLE_DEVICES: no CUDA context, no torch.

A plan names devices by their position in this list; a child gets the physical id of that position.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

MPS_CONTROL = "nvidia-cuda-mps-control"

# nvmlGpuP2PStatus_t, nvml.h
_NO_PEER_ACCESS = {
    1: "the chipset does not support it",
    2: "a GPU does not support it",
    3: "they hang on different hubs",
    4: "the driver is told not to",
    5: "it is not supported",
}

_P2P_READ = 0  # nvmlGpuP2PCapsIndex_t; the Python binding has a tuple of its name


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """`physical` is what CUDA_VISIBLE_DEVICES calls it: an index or a UUID."""

    physical: str
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The visible devices in order. `note` says why there are none, or fewer than the machine has; `no_mps` why no MPS
    daemon can be started; `unreachable` (reader, device, why) which cannot read another one's memory."""

    devices: tuple[Device, ...] = ()
    note: str = ""
    no_mps: str = ""
    unreachable: tuple[tuple[int, int, str], ...] = ()

    @classmethod
    def imagined(cls, count: int) -> "Inventory":
        """A machine that is not here, to plan for."""
        devices = tuple(Device(physical=str(index), name="imagined", memory_bytes=0) for index in range(count))
        return cls(devices=devices, note=f"imagined: {count}")

    def __len__(self) -> int:
        return len(self.devices)

    def no_peer_access(self, reader: int, device: int) -> str:
        """Why one device cannot read another one's memory; empty if it can. Devices by their positions."""
        return next((why for a, b, why in self.unreachable if (a, b) == (reader, device)), "")


def _nvml() -> Any:
    import pynvml

    return pynvml


def visible_devices(environ: Mapping[str, str] = os.environ, nvml: Callable[[], Any] = _nvml) -> Inventory:
    """The inventory of this machine. A machine without a driver has none; that is no error."""
    library = nvml()
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return Inventory(note=f"no GPU: NVML says {error}")
    try:
        found = _visible(library, environ.get("CUDA_VISIBLE_DEVICES"))
    finally:
        library.nvmlShutdown()
    return replace(found, no_mps=_mps_obstacle(environ))


def _mps_obstacle(environ: Mapping[str, str]) -> str:
    """Why no daemon of ours can be started here; empty if one can."""
    if "CUDA_MPS_PIPE_DIRECTORY" in environ:
        return "CUDA_MPS_PIPE_DIRECTORY is set, so that the processes are clients of a daemon that is not ours"
    if shutil.which(MPS_CONTROL, path=environ.get("PATH")) is None:
        return f"{MPS_CONTROL} is not on the PATH; it comes with NVIDIA's driver"
    return ""


def device_uuid(physical: str, nvml: Callable[[], Any] = _nvml) -> str:
    """The UUID of a device that is named by its index or by its UUID."""
    library = nvml()
    library.nvmlInit()
    try:
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
        uuids = [_text(library.nvmlDeviceGetUUID(handle)) for handle in handles]
        return _text(library.nvmlDeviceGetUUID(_handle(library, physical, handles, uuids)))
    finally:
        library.nvmlShutdown()


def _visible(library: Any, listed: str | None) -> Inventory:
    handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
    if listed is None:
        return _inventory(library, {str(index): handle for index, handle in enumerate(handles)}, "")
    uuids = [_text(library.nvmlDeviceGetUUID(handle)) for handle in handles]
    chosen: dict[str, Any] = {}
    for token in (part.strip() for part in listed.split(",")):
        handle = _handle(library, token, handles, uuids)
        # As CUDA does it: the first entry that names no device hides itself and everything after it.
        if handle is None or token in chosen:
            break
        chosen[token] = handle
    return _inventory(library, chosen, f"CUDA_VISIBLE_DEVICES={listed} on a machine of {len(handles)}")


def _inventory(library: Any, chosen: Mapping[str, Any], note: str) -> Inventory:
    """`chosen` has NVML's handles by physical id, in order."""
    devices = tuple(_device(library, physical, handle) for physical, handle in chosen.items())
    handles = list(chosen.values())
    found = (
        (reader, device, no_peer_access(library, handles[reader], handles[device]))
        for reader, device in itertools.permutations(range(len(handles)), 2)
    )
    return Inventory(devices=devices, note=note, unreachable=tuple(entry for entry in found if entry[2]))


def no_peer_access(library: Any, reader: Any, device: Any) -> str:
    """Why, by NVML's handles, one device cannot read another one's memory; empty if it can."""
    try:
        status = library.nvmlDeviceGetP2PStatus(reader, device, _P2P_READ)
    except library.NVMLError as error:
        return f"NVML says {error}"
    if status == library.NVML_P2P_STATUS_OK:
        return ""
    return _NO_PEER_ACCESS.get(status, "NVML knows of no peer access")


def _handle(library: Any, token: str, handles: list[Any], uuids: list[str]) -> Any | None:
    if token.isdecimal():
        return handles[int(token)] if int(token) < len(handles) else None
    if token.startswith("MIG-"):
        try:
            return library.nvmlDeviceGetHandleByUUID(token)
        except library.NVMLError:
            return None
    matches = [handle for handle, uuid in zip(handles, uuids, strict=True) if token and uuid.startswith(token)]
    return matches[0] if len(matches) == 1 else None


def _device(library: Any, physical: str, handle: Any) -> Device:
    memory = int(library.nvmlDeviceGetMemoryInfo(handle).total)
    return Device(physical=physical, name=_text(library.nvmlDeviceGetName(handle)), memory_bytes=memory)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
