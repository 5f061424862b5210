"""Errors that a stage raises or reports. They cross the process boundary as `ErrorInfo`, never as exceptions."""

import traceback
from dataclasses import dataclass
from typing import Literal

Fault = Literal["client", "server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """What failed, for a person and for a status code.

    `kind` is the exception's type name, `stage` the logical stage (or process, before a request is involved),
    `trace` the traceback as text, empty where none helps (client faults, deaths of a process).
    """

    kind: str
    message: str
    fault: Fault
    stage: str
    trace: str = ""


class StageError(Exception):
    """A failure that names its own fault; anything else that a stage raises is a server fault."""

    fault: Fault = "server"


class RequestRefused(StageError):
    """The request asks for something that this stage cannot do: an unknown speaker, an input that is too long."""

    fault = "client"


class PayloadTooLarge(StageError):
    """A payload that can never fit its ring; the message names the key that makes the ring larger."""


class CheckpointError(StageError):
    """Weights or configuration of a checkpoint are absent, truncated, missing or unexpected."""


# By the exception's name, so that nobody here needs torch: `torch.OutOfMemoryError` is the device's.
_REMEDIES = {
    "OutOfMemoryError": "give the stage less to do at once (deploy.stages.{stage}.max_batch, .step_tokens), or its "
    "device less to hold (.memory_fraction, .kv_blocks, other stages on it)",
    "MemoryError": "give the stage less to do at once (deploy.stages.{stage}.max_batch), or the machine more memory",
}


def describe(error: BaseException, stage: str) -> ErrorInfo:
    """The error as data, with what can be done about it where that is known. A client fault carries no traceback: its
    message is the whole answer."""
    fault: Fault = error.fault if isinstance(error, StageError) else "server"
    trace = "" if fault == "client" else "".join(traceback.format_exception(error))
    kind = type(error).__name__
    message = str(error) or kind
    if remedy := _REMEDIES.get(kind):
        message = f"{message.strip().removesuffix('.')}; {remedy.format(stage=stage)}"
    return ErrorInfo(kind=kind, message=message, fault=fault, stage=stage, trace=trace)
