"""The connector `cuda_ipc`: the ring of `shm`, and beside it a buffer on the producer's device for what lies there.

Slots, leases, credit and everything in host memory are those of `shm`. The buffer is allocated and exported once; its
handle stands in the ring's header, and only a reader opens it, which in the parent nobody is.

Who tells of a payload has waited for its copy on the host: the copy is the last thing on the producer's stream, so that
this costs what it takes itself (16 MiB: some 20 us), and a producer that dies leaves no event for which a reader's
stream would wait for ever. A reader copies what it keeps, likewise to the end, before its release is reported.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from stages.config import RingSpec
from stages.connectors.allocator import FirstFit
from stages.connectors.device_memory import DeviceBlock, DeviceMemory, DeviceMemoryError
from stages.connectors.gather import gather
from stages.connectors.shm import ShmReader, ShmWriter
from stages.errors import PayloadTooLarge
from stages.lease import Lease
from stages.payload import Payload, PayloadRef, Tensor

log = logging.getLogger("omni.connectors")


class CudaIpcWriter(ShmWriter):
    """The producer's end. The buffer has as many bytes as the ring, and stays until the process ends."""

    def __init__(self, spec: RingSpec, owner: str, numbers: Iterator[int], memory: DeviceMemory) -> None:
        """Raises DeviceMemoryError if the device has no room."""
        super().__init__(spec, owner, numbers)
        self._memory = memory
        self._device_space = FirstFit(spec.data_bytes, range(spec.slots))
        self._extents: dict[int, int] = {}  # lease number -> extent of the buffer
        try:
            self._buffer = memory.allocate(spec.data_bytes)
            self._ring.tell(memory.export(self._buffer))
        except DeviceMemoryError as error:
            mib = spec.data_bytes / 2**20
            raise DeviceMemoryError(f"a ring of {mib:.1f} MiB ({spec.key}) on the device: {error}") from error

    def put(self, pieces: Sequence[Payload]) -> tuple[PayloadRef, Lease] | None:
        gathered = gather(pieces, on_device=True)
        nbytes = gathered.device_nbytes
        if not nbytes:
            return self.write(gathered)
        if nbytes > self._spec.data_bytes:
            raise PayloadTooLarge(
                f"a payload of {nbytes} bytes on the device can never fit the buffer of ring {self._spec.segment} of "
                f"{self._spec.data_bytes} bytes; make it larger with {self._spec.key}"
            )
        found = self._device_space.allocate(nbytes)
        if found is None:
            return None
        extent, start = found
        written = None
        try:
            written = self.write(gathered)
        finally:
            if written is None:  # no room in the ring, now or ever
                self._device_space.free(extent)
        if written is None:
            return None
        ref, lease = written
        self._extents[lease.number] = extent
        try:
            for offset, chunk in gathered.device_chunks:
                self._memory.copy(self._buffer + start + offset, chunk.address, chunk.nbytes)
            self._memory.wait()
        except BaseException:
            self.reclaim(lease)
            raise
        return replace(ref, nbytes=ref.nbytes + nbytes, device_offset=start, device_nbytes=nbytes), lease

    def reclaim(self, lease: Lease) -> None:
        super().reclaim(lease)
        extent = self._extents.pop(lease.number, None)
        if extent is not None:
            self._device_space.free(extent)


class CudaIpcReader(ShmReader):
    """The consumer's end. `memory` is asked for when the first payload on a device comes, as nobody else needs it."""

    def __init__(self, specs: Iterable[RingSpec], memory: Callable[[], DeviceMemory]) -> None:
        super().__init__(specs)
        self._memory = memory
        self._buffers: dict[str, int] = {}  # segment -> address

    def get(self, ref: PayloadRef) -> Payload:
        """Raises StaleReference, or DeviceMemoryError if the producer's buffer cannot be opened."""
        if not ref.device_nbytes:
            return super().get(ref)
        hosted = tuple(spec for spec in ref.tensors if not spec.on_device)
        payload = super().get(replace(ref, tensors=hosted, nbytes=ref.nbytes - ref.device_nbytes))
        if ref.segment not in self._buffers:
            self._buffers[ref.segment] = self._memory().attach(self._rings[ref.segment].handle)
        memory, start = self._memory(), self._buffers[ref.segment] + ref.device_offset
        here = {tensor.name: tensor for tensor in payload.tensors}
        for spec in ref.tensors:
            if spec.on_device:
                block = DeviceBlock(memory, start + spec.offset, spec.nbytes)
                here[spec.name] = Tensor(name=spec.name, dtype=spec.dtype, shape=spec.shape, on_device=block)
        return Payload(tensors=tuple(here[spec.name] for spec in ref.tensors), meta=ref.meta)

    def detach(self, segment: str) -> None:
        super().detach(segment)
        address = self._buffers.pop(segment, None)
        if address is not None:
            try:
                self._memory().detach(address)
            except DeviceMemoryError as error:
                log.warning("the buffer of ring %s, whose producer is dead, stays on the device: %s", segment, error)
