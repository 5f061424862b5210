"""Tensors survive the way through bytes, and do not share memory with the payload."""

import pytest
import torch

from stages.payload import Payload
from stages.runners.tensors import from_payload, read_all, to_payload


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]
)
@pytest.mark.parametrize("shape", [(2, 3), (0, 4), ()])
def test_round_trip(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 100).to(dtype)
    back = from_payload(to_payload("x", tensor))
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
