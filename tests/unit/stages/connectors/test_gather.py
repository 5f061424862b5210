"""Concatenation along dimension 0, by tensor name."""

from array import array

import pytest

from stages.connectors.gather import gather
from stages.payload import Payload, Tensor


def tensor(name, values, *trailing):
    data = memoryview(array("i", values)).cast("B")
    count = len(values)
    for length in trailing:
        count //= length
    return Tensor(name=name, dtype="int32", shape=(count, *trailing), data=data)


def filled(gathered):
    buffer = bytearray(gathered.nbytes)
    gathered.fill(memoryview(buffer))
    return {
        spec.name: (spec.shape, list(memoryview(buffer)[spec.offset : spec.offset + spec.nbytes].cast("i")))
        for spec in gathered.tensors
    }


def test_a_single_payload_passes_as_it_is():
    scalar = Tensor(name="s", dtype="int32", shape=(), data=memoryview(array("i", [7])).cast("B"))
    gathered = gather([Payload(tensors=(tensor("a", [1, 2, 3, 4], 2), scalar), meta=(("rate", 1),))])
    assert filled(gathered) == {"a": ((2, 2), [1, 2, 3, 4]), "s": ((), [7])}
    assert gathered.meta == (("rate", 1),)


def test_pieces_are_joined_by_name_and_the_last_scalar_holds():
    gathered = gather(
        [
            Payload(tensors=(tensor("a", [1, 2], 2), tensor("b", [9])), meta=(("rate", 1), ("x", "y"))),
            Payload(meta=(("rate", 2),)),
            Payload(tensors=(tensor("c", [5]), tensor("a", [3, 4, 5, 6], 2))),
        ]
    )
    assert filled(gathered) == {"a": ((3, 2), [1, 2, 3, 4, 5, 6]), "b": ((1,), [9]), "c": ((1,), [5])}
    assert gathered.meta == (("rate", 2), ("x", "y"))


@pytest.mark.parametrize(
    "other",
    [
        tensor("a", [1, 2, 3], 3),
        Tensor(name="a", dtype="float32", shape=(1, 2), data=memoryview(bytes(8))),
        Tensor(name="a", dtype="int32", shape=(), data=memoryview(bytes(4))),
    ],
)
def test_pieces_that_do_not_fit_together_are_refused_by_name(other):
    with pytest.raises(ValueError, match="'a'"):
        gather([Payload(tensors=(tensor("a", [1, 2], 2),)), Payload(tensors=(other,))])
