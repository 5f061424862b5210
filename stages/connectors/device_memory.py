"""The memory of a process's device by addresses, as the connector `cuda_ipc` needs it. Here by CUDA's driver.

By the driver itself, since torch would keep a file and a count for every buffer that it shares, which a killed process
leaves behind, and because no connector imports torch. It must not know what is copied, nor for whom.
"""

import ctypes
import functools
from dataclasses import dataclass
from typing import Any, Protocol

from stages.errors import StageError

# cuda.h
_DEFAULT_STREAM = None  # where stages compute: what is queued here comes after what they have queued
_LAZY_PEER_ACCESS = 1
_OUT_OF_MEMORY = 2
_HANDLE_BYTES = 64
_WHOLE_BYTES = 2 << 20  # what is smaller shares its page with other buffers, and the page is what is exported


class DeviceMemoryError(StageError):
    """The device cannot give, share or copy memory; the message says what it answered."""


class DeviceMemory(Protocol):
    """Used by the one thread of a stage process."""

    @property
    def device(self) -> str:
        """By torch's name."""
        ...

    def allocate(self, nbytes: int) -> int:
        """The address of a new buffer. Raises DeviceMemoryError without room."""
        ...

    def export(self, address: int) -> bytes:
        """64 bytes by which another process can `attach` to the buffer. The buffer stays until this process ends: to
        free what another one has open is not allowed."""
        ...

    def attach(self, handle: bytes) -> int:
        """The address, in this process, of a buffer that another one has exported."""
        ...

    def detach(self, address: int) -> None:
        """The buffer is not read any more here. Until then its memory is held, also when its owner is dead."""
        ...

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Queues a copy behind all that the stage has queued so far."""
        ...

    def read(self, source: int, target: memoryview) -> None:
        """Fills host memory; returns when that is done."""
        ...

    def wait(self) -> None:
        """Until all that is queued is done."""
        ...


@dataclass(slots=True)
class DeviceBlock:
    """`DeviceBytes` at an address of some `DeviceMemory`: those of a received payload."""

    memory: DeviceMemory
    address: int
    nbytes: int

    @property
    def device(self) -> str:
        return self.memory.device

    def read(self, target: memoryview) -> None:
        self._size()
        self.memory.read(self.address, target)

    def fill(self, target: Any) -> None:
        self.memory.copy(target.data_ptr(), self.address, self._size())
        self.memory.wait()

    def release(self) -> None:
        self.address = 0

    def _size(self) -> int:
        if not self.address:
            raise DeviceMemoryError("bytes on a device were read after their release; copy what is kept")
        return self.nbytes


class _Handle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("reserved", ctypes.c_char * _HANDLE_BYTES),)


class CudaMemory:
    """`DeviceMemory` of the process's first visible GPU, in the context that torch uses."""

    device = "cuda:0"

    def __init__(self) -> None:
        """Opens the context. Raises DeviceMemoryError where there is no driver or no GPU."""
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DeviceMemoryError(f"there is no CUDA driver: {error}") from error
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def allocate(self, nbytes: int) -> int:
        address = ctypes.c_uint64()
        size = -(-nbytes // _WHOLE_BYTES) * _WHOLE_BYTES
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def export(self, address: int) -> bytes:
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return bytes(handle)

    def attach(self, handle: bytes) -> int:
        # It opens memory of devices that this process does not see as well.
        address = ctypes.c_uint64()
        opened = _Handle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), opened, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return address.value

    def detach(self, address: int) -> None:
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        arguments = ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(nbytes)
        self._call("cuMemcpyDtoDAsync_v2", *arguments, ctypes.c_void_p(_DEFAULT_STREAM))

    def read(self, source: int, target: memoryview) -> None:
        host = ctypes.addressof(ctypes.c_char.from_buffer(target))
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(host), ctypes.c_uint64(source), ctypes.c_size_t(len(target)))

    def wait(self) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(_DEFAULT_STREAM))

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._driver, name)(*arguments))
        if code == 0:
            return
        text = ctypes.c_char_p()
        self._driver.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
        said = text.value.decode() if text.value is not None else f"error {code}"
        hint = "; lower deploy.stages.*.memory_fraction on this device" if code == _OUT_OF_MEMORY else ""
        raise DeviceMemoryError(f"{name}: {said}{hint}")


@functools.cache
def cuda_memory() -> CudaMemory:
    """The process's own; opened at the first call."""
    return CudaMemory()
