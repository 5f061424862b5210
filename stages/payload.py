"""Tensors on their way between stages: named, typed, contiguous bytes. Knows neither torch nor numpy."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

# Bytes an element, by the name that torch gives the dtype.
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "float32": 4, "int64": 8, "float64": 8,
}  # fmt: skip

ALIGNMENT_BYTES = 64

NO_BYTES = memoryview(b"")

Scalar = bool | int | float | str


class DeviceBytes(Protocol):
    """The bytes of a tensor in the memory of a device. Made by a runner, or by a connector that leaves them there;
    everybody between them passes it on unread."""

    @property
    def device(self) -> str:
        """The device of this process that can read them, by torch's name."""
        ...

    @property
    def address(self) -> int:
        """Where they begin, for this process."""
        ...

    @property
    def nbytes(self) -> int: ...

    def read(self, target: memoryview) -> None:
        """Copies them into as many bytes of host memory; returns when that is done."""
        ...

    def fill(self, target: Any) -> None:
        """Copies them into a contiguous tensor of as many bytes on `device`; returns when that is done."""
        ...

    def release(self) -> None:
        """They are not to be read again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Where a tensor lies inside its payload's bytes: C order, little endian, `offset` a multiple of 64.

    Those on a device are counted from the payload's `device_offset`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    on_device: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A C-contiguous tensor as bytes. `data` is a flat memoryview of format B, valid as long as its owner says.

    Bytes in the memory of a device are `on_device`, and `data` is empty; no bytes are on no device.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview = NO_BYTES
    on_device: DeviceBytes | None = None

    def __post_init__(self) -> None:
        expected = math.prod(self.shape) * ITEM_BYTES[self.dtype]
        if self.nbytes != expected:
            raise ValueError(
                f"tensor {self.name!r} of {self.dtype} {self.shape} needs {expected} bytes, got {self.nbytes}"
            )

    @property
    def nbytes(self) -> int:
        return self.data.nbytes if self.on_device is None else self.on_device.nbytes

    def copy_to(self, target: memoryview) -> None:
        """Copies the bytes, from wherever they lie, into as many of host memory, by no way round."""
        if self.on_device is None:
            target[:] = self.data
        elif target.nbytes:
            self.on_device.read(target)

    def release(self) -> None:
        """Ends the view. Raises BufferError if somebody has made another one of it."""
        if self.on_device is not None:
            self.on_device.release()
        elif self.data is not NO_BYTES:
            self.data.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What one stream message carries: tensors, and a few scalars about them."""

    tensors: tuple[Tensor, ...] = ()
    meta: tuple[tuple[str, Scalar], ...] = ()

    def tensor(self, name: str) -> Tensor:
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(f"no tensor {name!r} in payload; it has {[t.name for t in self.tensors]}")

    def scalar(self, name: str) -> Scalar:
        for key, value in self.meta:
            if key == name:
                return value
        raise KeyError(f"no scalar {name!r} in payload; it has {[k for k, _ in self.meta]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRef:
    """Where a payload lies. `inline` holds the bytes themselves; otherwise `segment` and `slot` name a ring's slot.

    Of its `nbytes`, `device_nbytes` lie in the ring's memory on the producer's device, from `device_offset` on.
    """

    tensors: tuple[TensorSpec, ...]
    meta: tuple[tuple[str, Scalar], ...]
    nbytes: int
    segment: str = ""
    slot: int = -1
    offset: int = 0
    inline: bytes | None = None
    device_offset: int = 0
    device_nbytes: int = 0


def layout(shapes: tuple[tuple[str, str, tuple[int, ...]], ...]) -> tuple[tuple[TensorSpec, ...], int]:
    """Places (name, dtype, shape) triples one after the other, aligned; returns the specs and the total bytes."""
    specs, end = [], 0
    for name, dtype, shape in shapes:
        offset = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        spec = TensorSpec(name=name, dtype=dtype, shape=shape, offset=offset)
        specs.append(spec)
        end = offset + spec.nbytes
    return tuple(specs), end


def view(ref_tensors: tuple[TensorSpec, ...], meta: tuple[tuple[str, Scalar], ...], buffer: memoryview) -> Payload:
    """A payload read in place from `buffer` (flat, format B), whose life time is the caller's to keep."""
    return Payload(
        tensors=tuple(
            Tensor(name=s.name, dtype=s.dtype, shape=s.shape, data=buffer[s.offset : s.offset + s.nbytes])
            for s in ref_tensors
        ),
        meta=meta,
    )
