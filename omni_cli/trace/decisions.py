"""What makes two decisions the same one, and what it is that they decide. Knows no order and no time."""

from dataclasses import replace

from omni_cli.runtime.events import (
    Event,
    LeaseDropped,
    LeaseGranted,
    LeaseRead,
    MediaPut,
    OutputFinished,
    RequestFailed,
    StageCancelling,
    StageSubmitted,
)


def subject(event: Event) -> tuple[object, ...]:
    """What is decided here, whichever way: two decisions about one thing are alternatives to each other."""
    kind, uid = type(event), getattr(event, "uid", None)
    match event:
        case StageSubmitted() | StageCancelling():
            return kind, uid, event.stage
        case OutputFinished():
            return kind, uid, event.modality
        case MediaPut():
            return kind, uid, event.consumer
        case LeaseGranted():
            return kind, uid, event.producer, event.reader.rpartition(".")[0], event.seq
        case LeaseDropped() | LeaseRead():
            return kind, uid, event.lease
    return kind, uid


def same(one: Event, other: Event) -> bool:
    """But for the stamp, and for the place in the code where an error was made."""
    if type(one) is not type(other):
        return False
    if one == other:
        return True
    if isinstance(one, RequestFailed) and isinstance(other, RequestFailed):
        one = replace(one, error=replace(one.error, trace=other.error.trace))
    return one == replace(other, t_ns=one.t_ns)
