"""One file under /dev/shm per ring: a header, a slot table, a data area. Written by its one producer, read in place.

`OMNI_SHM_DIR` names another folder than /dev/shm.

The parent creates every ring before it spawns a stage, so that a lack of memory is an error of the start; stages attach
by name. A ring whose creator is dead is told by its lock alone, so no lock file and no resource tracker are needed.
This module must not decide who may read or when a slot is free: that is the connector's and the lease ledger's.
"""

import errno
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Self

from stages.config import RingSpec
from stages.errors import StageError

SHM_DIR = os.environ.get("OMNI_SHM_DIR") or "/dev/shm"

FREE, WRITTEN = 0, 1

_MAGIC = b"OMNIRING"
_VERSION = 2
_HEADER = struct.Struct("<8sIIQQ64s")  # magic, version, slots, data offset, data bytes, handle
_SLOT = struct.Struct("<IIQQQ")  # state, reserved, lease number, offset in the data area, length in bytes
_HANDLE = _HEADER.size - 64  # where the handle begins
_PAGE_BYTES = 4096


class RingError(StageError):
    """A ring cannot be created or attached; the message says why and which key changes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """An entry of the slot table. `offset` counts from the start of the data area."""

    state: int
    lease: int
    offset: int
    length: int


def ring_path(segment: str) -> str:
    return f"{SHM_DIR}/{segment}"


class RingFile:
    """A created ring: owns the file and the lock that says that its run is alive. Maps nothing."""

    def __init__(self, spec: RingSpec, fd: int) -> None:
        self.spec = spec
        self._fd = fd

    def close(self) -> None:
        """Gives up the lock; the file stays until `unlink`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_OF_THE_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.EACCES, errno.ENOSPC}


def create_ring(spec: RingSpec) -> RingFile:
    """Creates and reserves a ring.

    Raises RingError if there is no folder that takes it, or no room in it, FileExistsError if the name is taken.
    """
    try:
        fd = _create_locked(ring_path(spec.segment))
    except OSError as error:
        if error.errno not in _OF_THE_FOLDER:
            raise
        raise RingError(f"{SHM_DIR}: {error.strerror}, and rings live there; OMNI_SHM_DIR names another") from error
    data_offset = _data_offset(spec.slots)
    try:
        # ftruncate would succeed without memory and the first touch would be a SIGBUS
        os.posix_fallocate(fd, 0, data_offset + spec.data_bytes)
        os.pwrite(fd, _HEADER.pack(_MAGIC, _VERSION, spec.slots, data_offset, spec.data_bytes, b""), 0)
    except BaseException as error:
        os.unlink(ring_path(spec.segment))
        os.close(fd)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise RingError(_no_space(spec)) from error
        raise
    return RingFile(spec, fd)


def _create_locked(path: str) -> int:
    """A new file of which this process holds the shared lock, however a clean-up of dead runs interferes."""
    while True:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # removed as an orphan between open and lock


def _no_space(spec: RingSpec) -> str:
    stat, needed = os.statvfs(SHM_DIR), _data_offset(spec.slots) + spec.data_bytes
    return (
        f"no room under {SHM_DIR} for ring {spec.segment}: it needs {needed / 2**20:.2f} MiB and "
        f"{stat.f_bavail * stat.f_frsize / 2**20:.2f} MiB are free; make it smaller with {spec.key}, or {SHM_DIR} "
        "larger (in a container: --shm-size)"
    )


def _data_offset(slots: int) -> int:
    return -(-(_HEADER.size + slots * _SLOT.size) // _PAGE_BYTES) * _PAGE_BYTES


def unlink(segment: str) -> None:
    """Removes a ring's name; those who have it mapped keep it. Raises FileNotFoundError if it is not there."""
    os.unlink(ring_path(segment))


def is_orphan(path: str, *, remove: bool = False) -> bool:
    """Whether it is a ring whose lock no living process holds; `remove` removes such a one, safely against a creator
    at the same moment. Raises FileNotFoundError if it is not there."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # Begins with nothing at all if its creator died before it wrote the header.
        if os.pread(fd, len(_MAGIC), 0).strip(b"\0") not in (b"", _MAGIC):
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if remove:
            os.unlink(path)  # while locked: a creator in between finds its file unlinked and starts again
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


class Ring:
    """A mapping of a ring, for its producer (`writable`) or for anyone who reads. Not thread-safe."""

    def __init__(self, segment: str, writable: bool = False) -> None:
        """Attaches. Raises FileNotFoundError, or RingError if the file is no ring of this version."""
        self.segment = segment
        path = ring_path(segment)
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            head = os.pread(fd, _HEADER.size, 0).ljust(_HEADER.size, b"\0")
            magic, version, self.slots, self._data_offset, self.data_bytes, _ = _HEADER.unpack(head)
            if magic != _MAGIC or version != _VERSION or size < self._data_offset + self.data_bytes:
                raise RingError(f"{path} is no ring of version {_VERSION}; remove it, or see `omni doctor --clean`")
            # page tables are filled here, once: page faults at first use would cost more than the copies
            self._map = mmap.mmap(
                fd,
                size,
                flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
                prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0),
            )
        finally:
            os.close(fd)
        self._view = memoryview(self._map)
        self.data = self._view[self._data_offset : self._data_offset + self.data_bytes]

    def slot(self, index: int) -> Slot:
        state, _, lease, offset, length = _SLOT.unpack_from(self._map, _HEADER.size + index * _SLOT.size)
        return Slot(state=state, lease=lease, offset=offset, length=length)

    def mark(self, index: int, slot: Slot) -> None:
        """Writes an entry of the slot table; the producer's alone."""
        where = _HEADER.size + index * _SLOT.size
        _SLOT.pack_into(self._map, where, slot.state, 0, slot.lease, slot.offset, slot.length)

    @property
    def handle(self) -> bytes:
        """By which a reader finds the ring's memory on the producer's device, once the producer has told it: 64 bytes.

        Told before the first payload there, it is known to whoever has a reference to one.
        """
        return bytes(self._map[_HANDLE : _HEADER.size])

    def tell(self, handle: bytes) -> None:
        """The producer's alone. Raises ValueError for another length than 64 bytes."""
        if len(handle) != _HEADER.size - _HANDLE:
            raise ValueError(f"a handle has {_HEADER.size - _HANDLE} bytes, not {len(handle)}")
        self._map[_HANDLE : _HEADER.size] = handle

    def live_slots(self) -> tuple[int, ...]:
        """The slots that are written and not yet reclaimed."""
        return tuple(index for index in range(self.slots) if self.slot(index).state == WRITTEN)

    def close(self) -> None:
        """Unmaps, once the last view that was handed out is gone as well."""
        try:
            self.data.release()
            self._view.release()
            self._map.close()
        except BufferError:
            pass  # somebody still reads in place: the mapping lives as long as that view does

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def live_slots(segment: str) -> tuple[int, ...]:
    """The written slots of a ring, read from its header by anyone who knows its name."""
    with Ring(segment) as ring:
        return ring.live_slots()
