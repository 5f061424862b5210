"""Several payloads as one: tensors of a name concatenated along dimension 0. Plans the copies, copies nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stages.payload import DeviceBytes, Payload, Scalar, Tensor, TensorSpec, layout


@dataclass(frozen=True, slots=True)
class Gathered:
    """`chunks` are (offset, tensor) pairs that fill the layout `tensors`, of `nbytes` in all; so on the device."""

    tensors: tuple[TensorSpec, ...]
    meta: tuple[tuple[str, Scalar], ...]
    nbytes: int
    chunks: tuple[tuple[int, Tensor], ...]
    device_nbytes: int = 0
    device_chunks: tuple[tuple[int, DeviceBytes], ...] = ()

    def fill(self, target: memoryview, start: int = 0) -> None:
        """Copies `nbytes` from `start` on. What is to stay on a device is not copied, what lies there else is."""
        for offset, tensor in self.chunks:
            begin = start + offset
            tensor.copy_to(target[begin : begin + tensor.nbytes])


def gather(pieces: Sequence[Payload], *, on_device: bool = False) -> Gathered:
    """Of scalars with one name the last one holds. Raises ValueError where tensors of a name do not fit together.

    What lies on a device is the host's once `fill` has copied it, unless it may stay `on_device`: that is laid out by
    itself then.
    """
    meta: tuple[tuple[str, Scalar], ...]
    if len(pieces) == 1:
        named, meta = [[tensor] for tensor in pieces[0].tensors], pieces[0].meta
    else:
        by_name: dict[str, list[Tensor]] = {}
        for piece in pieces:
            for tensor in piece.tensors:
                by_name.setdefault(tensor.name, []).append(tensor)
        named, meta = list(by_name.values()), tuple(dict(pair for piece in pieces for pair in piece.meta).items())
    if on_device and any(_stays(tensors) for tensors in named):
        return _split(named, meta)
    specs, nbytes = layout(tuple(_joined(tensors) for tensors in named))
    return Gathered(specs, meta, nbytes, _placed(specs, named))


def _split(named: list[list[Tensor]], meta: tuple[tuple[str, Scalar], ...]) -> Gathered:
    """Two layouts, and the tensors in the order in which they were."""
    hosted, staying = [t for t in named if not _stays(t)], [t for t in named if _stays(t)]
    specs, nbytes = layout(tuple(_joined(tensors) for tensors in hosted))
    device_specs, device_nbytes = layout(tuple(_joined(tensors) for tensors in staying))
    chunks: list[tuple[int, DeviceBytes]] = []
    for spec, tensors in zip(device_specs, staying, strict=True):
        offset = spec.offset
        for held in (tensor.on_device for tensor in tensors):
            if held is not None:
                chunks.append((offset, held))
                offset += held.nbytes
    placed = {spec.name: spec for spec in (*specs, *(replace(spec, on_device=True) for spec in device_specs))}
    ordered = tuple(placed[tensors[0].name] for tensors in named)
    return Gathered(ordered, meta, nbytes, _placed(specs, hosted), device_nbytes, tuple(chunks))


def _stays(tensors: list[Tensor]) -> bool:
    """Whether all of a tensor is on the device."""
    return all(tensor.on_device is not None for tensor in tensors)


def _placed(specs: tuple[TensorSpec, ...], named: list[list[Tensor]]) -> tuple[tuple[int, Tensor], ...]:
    placed = []
    for spec, tensors in zip(specs, named, strict=True):
        offset = spec.offset
        for tensor in tensors:
            placed.append((offset, tensor))
            offset += tensor.nbytes
    return tuple(placed)


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
