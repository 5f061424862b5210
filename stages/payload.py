"""Tensors on their way between stages: named, typed, contiguous bytes. Knows neither torch nor numpy."""

import math
from dataclasses import dataclass

# Bytes an element, by the name that torch gives the dtype.
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "float32": 4, "int64": 8, "float64": 8,
}  # fmt: skip

ALIGNMENT_BYTES = 64

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Where a tensor lies inside its payload's bytes: C order, little endian, `offset` a multiple of 64."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A C-contiguous tensor as bytes. `data` is a flat memoryview of format B, valid as long as its owner says."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def __post_init__(self) -> None:
        expected = math.prod(self.shape) * ITEM_BYTES[self.dtype]
        if self.data.nbytes != expected:
            raise ValueError(
                f"tensor {self.name!r} of {self.dtype} {self.shape} needs {expected} bytes, got {self.data.nbytes}"
            )


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
    """Where a payload lies. `inline` holds the bytes themselves; otherwise `segment` and `slot` name a ring's slot."""

    tensors: tuple[TensorSpec, ...]
    meta: tuple[tuple[str, Scalar], ...]
    nbytes: int
    segment: str = ""
    slot: int = -1
    offset: int = 0
    inline: bytes | None = None


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
