"""Between torch tensors and the bytes of a payload. Copies on the way in, so that the payload's memory may go."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stages.payload import Payload, Tensor

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
    )
}  # fmt: skip

_NAMES = {np.dtype(name): name for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")}


def from_payload(tensor: Tensor) -> torch.Tensor:
    """A copy on the CPU, of the same dtype and shape."""
    if not tensor.data.nbytes:
        return torch.empty(tensor.shape, dtype=_DTYPES[tensor.dtype])
    # A writable copy: torch warns about, and must not get, memory that it could write into.
    flat = torch.frombuffer(bytearray(tensor.data), dtype=_DTYPES[tensor.dtype])
    return flat.reshape(tensor.shape)


def to_payload(name: str, tensor: torch.Tensor) -> Tensor:
    """The tensor as bytes in host memory; a tensor that lies there contiguously is not copied."""
    host = tensor.detach().cpu().contiguous()
    data = host.reshape(-1).view(torch.uint8).numpy() if host.numel() else host.new_empty(0, dtype=torch.uint8).numpy()
    return Tensor(
        name=name,
        dtype=str(host.dtype).removeprefix("torch."),
        shape=tuple(host.shape),
        data=memoryview(data),
    )


def array_payload(name: str, array: npt.NDArray[Any]) -> Tensor:
    """A contiguous array as bytes, without a copy."""
    data = array.data.cast("B") if array.size else memoryview(b"")
    return Tensor(name=name, dtype=_NAMES[array.dtype], shape=array.shape, data=data)


def read_all(payload: Payload) -> dict[str, torch.Tensor]:
    """Copies of all tensors of a payload, by name."""
    return {tensor.name: from_payload(tensor) for tensor in payload.tensors}
