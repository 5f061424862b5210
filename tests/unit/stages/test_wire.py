"""Every control message survives its way through a pipe, and all of them take the quick one."""

import copyreg
import dataclasses
import typing

import pytest

from stages import events, messages
from stages.lease import Lease
from stages.payload import PayloadRef, TensorSpec
from stages.wire import MESSAGES, decode, encode

SAMPLES = {
    int: 7,
    float: 1.5,
    str: "x",
    bool: True,
}


def example(kind):
    """An instance with something in every field that has no default."""
    hints = typing.get_type_hints(kind)
    return kind(**{f.name: value(hints[f.name]) for f in dataclasses.fields(kind) if _required(f)})


def _required(field):
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def value(hint):
    if hint in SAMPLES:
        return SAMPLES[hint]
    if dataclasses.is_dataclass(hint):
        return example(hint)
    if typing.get_origin(hint) is tuple:
        inner = [arg for arg in typing.get_args(hint) if arg is not ...]
        return tuple(value(arg) for arg in inner)
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)[0]
    return value(typing.get_args(hint)[0])  # a union


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_message_survives(kind):
    message = example(kind)
    assert decode(encode(message)) == message
    assert type(decode(encode(message))) is kind


def test_defaults_and_nesting_survive():
    ref = PayloadRef(
        tensors=(TensorSpec(name="a", dtype="uint8", shape=(2,), offset=0),), meta=(("r", 1),), nbytes=2, inline=b"xy"
    )
    message = messages.StreamMessage(
        uid=1,
        producer="a",
        consumer="b",
        seq=0,
        units=1,
        eos=True,
        ref=ref,
        lease=Lease(owner="a.0", number=2, slot=1),
    )
    turn = messages.Turn(commands=(messages.Deliver(message=message), messages.Stop()), sent_ns=5)
    assert decode(encode(turn)) == turn


def test_what_arrives_is_frozen_as_before():
    arrived = decode(encode(Lease(owner="a.0", number=2, slot=1)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        arrived.slot = 2
    assert hash(arrived) == hash(Lease(owner="a.0", number=2, slot=1))


def test_every_event_and_command_takes_the_quick_way():
    kinds = {*typing.get_args(events.StageEvent), *typing.get_args(messages.Command)}
    assert kinds <= set(MESSAGES)
    assert all(kind in copyreg.dispatch_table for kind in MESSAGES if kind.__slots__)
