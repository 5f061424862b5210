"""Tensors survive the way through bytes, and do not share memory with the payload."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from stages.config import EdgeSpec
from stages.connectors.device_memory import DeviceBlock
from stages.payload import Payload, Tensor
from stages.runners.tensors import TorchBytes, from_payload, hand_over, keep, read_all, to_payload
from tests.unit.stages.connectors.shared_device import SharedDevice


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]
)
@pytest.mark.parametrize("shape", [(2, 3), (0, 4), ()])
def test_round_trip(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 100).to(dtype)
    sent = to_payload("x", tensor)
    back = from_payload(replace(sent, data=memoryview(bytes(sent.data))))  # read-only, as a ring is
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


def test_a_transposed_tensor_is_written_row_by_row() -> None:
    tensor = torch.arange(6).reshape(2, 3).T
    assert torch.equal(from_payload(to_payload("x", tensor)), tensor)


def test_the_copy_outlives_the_payload() -> None:
    source = torch.arange(4)
    copies = read_all(Payload(tensors=(to_payload("x", source),)))
    source.zero_()
    assert copies["x"].tolist() == [0, 1, 2, 3]


def test_what_is_handed_over_stays_where_it_is() -> None:
    with torch.inference_mode():
        tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    assert hand_over("x", tensor).on_device is None
    held, read = TorchBytes(tensor), bytearray(tensor.nbytes)
    held.read(memoryview(read))
    assert bytes(read) == bytes(to_payload("x", tensor).data)
    assert torch.equal(from_payload(Tensor(name="x", dtype="bfloat16", shape=(2, 3), on_device=held)), tensor)


@pytest.mark.parametrize(("connectors", "stays"), [((), False), (("shm",), False), (("shm", "cuda_ipc"), True)])
def test_what_is_kept_for_later_stays_on_the_device_only_for_an_edge_from_there(connectors, stays) -> None:
    edges = [EdgeSpec(producer="a", consumer="b", mode="complete", connector=name, rings=()) for name in connectors]
    there = SimpleNamespace(cpu=lambda: here)
    here = torch.zeros(2)
    assert keep(there, edges) is (there if stays else here)


def test_a_tensor_that_came_by_a_device_is_a_complete_copy_there() -> None:
    source = torch.arange(6, dtype=torch.int32)
    block = DeviceBlock(SharedDevice(""), source.data_ptr(), source.nbytes)
    copy = from_payload(Tensor(name="x", dtype="int32", shape=(2, 3), on_device=block))
    source.zero_()
    assert copy.tolist() == [[0, 1, 2], [3, 4, 5]]
