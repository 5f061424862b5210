"""Several payloads as one: tensors of a name concatenated along dimension 0. Plans the copies, copies nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from stages.payload import Payload, Scalar, Tensor, TensorSpec, layout


@dataclass(frozen=True, slots=True)
class Gathered:
    """`chunks` are (offset, bytes) pairs that fill the layout `tensors`, of `nbytes` in all."""

    tensors: tuple[TensorSpec, ...]
    meta: tuple[tuple[str, Scalar], ...]
    nbytes: int
    chunks: tuple[tuple[int, memoryview], ...]


def gather(pieces: Sequence[Payload]) -> Gathered:
    """Of scalars with one name the last one holds. Raises ValueError where tensors of a name do not fit together."""
    if len(pieces) == 1:
        (piece,) = pieces
        specs, nbytes = layout(tuple((t.name, t.dtype, t.shape) for t in piece.tensors))
        chunks = tuple((spec.offset, tensor.data) for spec, tensor in zip(specs, piece.tensors, strict=True))
        return Gathered(specs, piece.meta, nbytes, chunks)
    named: dict[str, list[Tensor]] = {}
    meta: dict[str, Scalar] = {}
    for piece in pieces:
        meta.update(piece.meta)
        for tensor in piece.tensors:
            named.setdefault(tensor.name, []).append(tensor)
    specs, nbytes = layout(tuple(_joined(tensors) for tensors in named.values()))
    placed = []
    for spec, tensors in zip(specs, named.values(), strict=True):
        offset = spec.offset
        for tensor in tensors:
            placed.append((offset, tensor.data))
            offset += tensor.data.nbytes
    return Gathered(specs, tuple(meta.items()), nbytes, tuple(placed))


def _joined(tensors: list[Tensor]) -> tuple[str, str, tuple[int, ...]]:
    first = tensors[0]
    if len(tensors) == 1:
        return first.name, first.dtype, first.shape
    for tensor in tensors:
        if not tensor.shape or tensor.dtype != first.dtype or tensor.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"pieces of tensor {first.name!r} cannot be concatenated along dimension 0: "
                f"{first.dtype} {first.shape} and {tensor.dtype} {tensor.shape}"
            )
    rows = sum(tensor.shape[0] for tensor in tensors)
    return first.name, first.dtype, (rows, *first.shape[1:])
