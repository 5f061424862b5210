"""Control messages as bytes, and back. What they mean is `messages` and `events`.

A frozen dataclass with slots is pickled by Python code that walks its fields, both ways: 20 us for a message with its
reference and lease, against 5 us by the reducers here.
"""

import copyreg
import pickle
from operator import attrgetter
from typing import Any, get_args

from stages.errors import ErrorInfo
from stages.events import StageEvent, StepReport, StepRow
from stages.lease import Lease
from stages.messages import ChatMessage, Command, LogLine, Part, Sampling, StageRequest, StreamMessage, Turn
from stages.payload import PayloadRef, TensorSpec

MESSAGES: tuple[type[Any], ...] = (
    *get_args(StageEvent),
    *get_args(Command),
    StepReport,
    StepRow,
    ChatMessage,
    ErrorInfo,
    Lease,
    LogLine,
    Part,
    Sampling,
    StageRequest,
    StreamMessage,
    Turn,
    PayloadRef,
    TensorSpec,
)


def encode(message: object) -> bytes:
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def decode(data: bytes) -> Any:
    """Trusts its data: it comes from our own process at the other end of a pipe."""
    return pickle.loads(data)


def _register(kind: type[Any]) -> None:
    """Gives the kind a function of its own that sets its slots, one after the other: a loop over them takes twice as
    long. It becomes a name of this module, by which `pickle` finds it again."""
    slots = kind.__slots__
    names = {"_new": object.__new__, "_kind": kind, **{f"_set_{slot}": getattr(kind, slot).__set__ for slot in slots}}
    body = "".join(f"    _set_{slot}(_made, {slot})\n" for slot in slots)
    exec(f"def rebuild({', '.join(slots)}):\n    _made = _new(_kind)\n{body}    return _made\n", names)
    rebuild: Any = names["rebuild"]
    rebuild.__module__, rebuild.__qualname__ = __name__, f"rebuild_{kind.__name__}"
    globals()[rebuild.__qualname__] = rebuild
    values = attrgetter(*slots)
    if len(slots) == 1:
        copyreg.pickle(kind, lambda message: (rebuild, (values(message),)))
    else:
        copyreg.pickle(kind, lambda message: (rebuild, values(message)))


for _kind in MESSAGES:
    if _kind.__slots__:  # `Stop` has none, and is rare
        _register(_kind)
