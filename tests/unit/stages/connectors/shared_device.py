"""A device made of shared memory: what the connector `cuda_ipc` does with a GPU's memory, without one.

A copy is done when it is waited for and not before, so that who does not wait reads zeros.
"""

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

from stages.connectors.device_memory import DeviceMemoryError
from stages.connectors.ring import SHM_DIR

if TYPE_CHECKING:
    from collections.abc import Callable


class SharedDevice:
    """One process's `DeviceMemory`. `room` is what can be allocated at once."""

    device = "cpu"

    def __init__(self, segment: str, room: int = 1 << 30) -> None:
        self._segment = segment
        self._room = room
        self._maps: list[mmap.mmap] = []
        self._names: dict[int, str] = {}
        self.attached: set[int] = set()
        self.broken = False
        self._queue: list[Callable[[], object]] = []

    def allocate(self, nbytes: int) -> int:
        if nbytes > self._room:
            raise DeviceMemoryError("out of memory")
        name = f"{self._segment}-{len(self._names)}"
        with open(f"{SHM_DIR}/{name}", "xb") as file:
            file.truncate(nbytes)
        address = self._map(name)
        self._names[address] = name
        return address

    def export(self, address: int) -> bytes:
        return self._names[address].encode().ljust(64, b"\0")

    def attach(self, handle: bytes) -> int:
        address = self._map(handle.rstrip(b"\0").decode())
        self.attached.add(address)
        return address

    def detach(self, address: int) -> None:
        if self.broken:
            raise DeviceMemoryError("invalid argument")
        self.attached.remove(address)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._queue.append(lambda: ctypes.memmove(target, source, nbytes))

    def read(self, source: int, target: memoryview) -> None:
        self.wait()
        target[:] = ctypes.string_at(source, len(target))

    def wait(self) -> None:
        for work in self._queue:
            work()
        self._queue.clear()

    def remove(self) -> None:
        for name in self._names.values():
            os.unlink(f"{SHM_DIR}/{name}")

    def _map(self, name: str) -> int:
        with open(f"{SHM_DIR}/{name}", "r+b") as file:
            self._maps.append(mmap.mmap(file.fileno(), 0))
        return ctypes.addressof(ctypes.c_char.from_buffer(self._maps[-1]))
