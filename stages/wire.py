"""Control messages as bytes, and back. What they mean is `messages` and `events`.

A frozen dataclass with slots is pickled by Python code that walks its fields, both ways: 20 us for a message with its
reference and lease, against 7 us by the reducers here.
"""

import copyreg
import pickle
from collections.abc import Callable
from operator import attrgetter
from typing import Any, get_args

from stages.events import StageEvent, StepReport, StepRow
from stages.lease import Lease
from stages.messages import Command, LogLine, Sampling, StageRequest, StreamMessage, Turn
from stages.payload import PayloadRef, TensorSpec

MESSAGES: tuple[type[Any], ...] = (
    *get_args(StageEvent),
    *get_args(Command),
    StepReport,
    StepRow,
    Lease,
    LogLine,
    Sampling,
    StageRequest,
    StreamMessage,
    Turn,
    PayloadRef,
    TensorSpec,
)

_SETTERS: dict[type[Any], tuple[Callable[[object, object], None], ...]] = {}


def encode(message: object) -> bytes:
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def decode(data: bytes) -> Any:
    """Trusts its data: it comes from our own process at the other end of a pipe."""
    return pickle.loads(data)


def rebuild(kind: type[Any], *values: object) -> object:
    """The message of that kind with these values of its slots, in order. Called by `pickle.loads`."""
    message = object.__new__(kind)
    for set_slot, value in zip(_SETTERS[kind], values, strict=True):
        set_slot(message, value)
    return message


def _register(kind: type[Any]) -> None:
    _SETTERS[kind] = tuple(getattr(kind, slot).__set__ for slot in kind.__slots__)
    values = attrgetter(*kind.__slots__)
    if len(kind.__slots__) == 1:
        copyreg.pickle(kind, lambda message: (rebuild, (kind, values(message))))
    else:
        copyreg.pickle(kind, lambda message: (rebuild, (kind, *values(message))))


for _kind in MESSAGES:
    if _kind.__slots__:  # `Stop` has none, and is rare
        _register(_kind)
