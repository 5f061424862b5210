"""Between torch tensors and the bytes of a payload. Copies on the way in, so that the payload's memory may go.

A received tensor is never handed over again: what is kept of it is a copy.
"""

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stages.config import EdgeSpec
from stages.payload import Payload, Tensor

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
    )
}  # fmt: skip

_HOST = torch.device("cpu")

# That torch could write into what it is shown: what is received is only read, and let go.
warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)

_NAMES = {np.dtype(name): name for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")}


class TorchBytes:
    """`DeviceBytes` of a contiguous tensor, which it keeps."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    @property
    def device(self) -> str:
        return str(self._tensor.device)

    @property
    def address(self) -> int:
        return int(self._tensor.data_ptr())

    @property
    def nbytes(self) -> int:
        return int(self._tensor.nbytes)

    def read(self, target: memoryview) -> None:
        # Straight there: memory that is made for it costs four times a copy.
        torch.frombuffer(target, dtype=torch.uint8).copy_(self._tensor.reshape(-1).view(torch.uint8))

    def fill(self, target: torch.Tensor) -> None:
        target.copy_(self._tensor)

    def release(self) -> None:
        """It is the producer's own memory, and ends with it."""


def hand_over(name: str, tensor: torch.Tensor) -> Tensor:
    """The tensor for another stage, where it is: on a device, if it is there. The connector of the edge then carries
    it from there, or copies it to the host."""
    if tensor.device.type == "cpu" or not tensor.numel():
        return to_payload(name, tensor)
    held = tensor.detach().contiguous()
    dtype = str(held.dtype).removeprefix("torch.")
    return Tensor(name=name, dtype=dtype, shape=tuple(held.shape), on_device=TorchBytes(held))


def keep(tensor: torch.Tensor, edges: Iterable[EdgeSpec]) -> torch.Tensor:
    """The tensor until it is handed over by one of `edges`: where it is, if they can take it from there; else on the
    host, as nobody has counted on it in the device's memory."""
    return tensor if any(edge.connector == "cuda_ipc" for edge in edges) else tensor.cpu()


def from_payload(tensor: Tensor, device: torch.device | None = None) -> torch.Tensor:
    """A copy of the same dtype and shape, complete on return: on the device it came by, else on `device` (the CPU)."""
    if tensor.on_device is not None:
        copy = torch.empty(tensor.shape, dtype=_DTYPES[tensor.dtype], device=tensor.on_device.device)
        tensor.on_device.fill(copy)
        return copy
    if not tensor.data.nbytes:
        return torch.empty(tensor.shape, dtype=_DTYPES[tensor.dtype], device=device)
    flat = torch.frombuffer(tensor.data, dtype=_DTYPES[tensor.dtype])
    return flat.reshape(tensor.shape).to(device or _HOST, copy=True)


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


def read_all(payload: Payload, device: torch.device | None = None) -> dict[str, torch.Tensor]:
    """Copies of all tensors of a payload, by name, as `from_payload` makes them."""
    return {tensor.name: from_payload(tensor, device) for tensor in payload.tensors}
