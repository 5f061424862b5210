"""A whole model in one process that answers requests one after the other, in place of a stage's worker: the loop around
it. It tells, in the events of the stages, when each thing was there; it must not know how stages compute."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from stages.config import StageSpec
from stages.errors import describe
from stages.events import ProcessReady, StageEvent, StageFailed, StepReport
from stages.messages import StageRequest, Stop, Submit
from stages.payload import Payload, PayloadRef, TensorSpec
from stages.worker.channel import Inbox, Outbox


class Reference(Protocol):
    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """For the ready event."""
        ...

    def answer(self, request: StageRequest) -> Mapping[str, Sequence[StageEvent]]:
        """What each stage would have told, by process; the last one says that it has finished."""
        ...


def serve(reference: Reference, spec: StageSpec, inbox: Inbox, outbox: Outbox) -> None:
    """Returns after `Stop`. What answering raises fails the request."""
    said = 0

    def say(process: str, events: Sequence[StageEvent]) -> None:
        nonlocal said
        outbox.put(StepReport(process=process, seq=said, events=tuple(events)))
        said += 1

    say(spec.process, [ProcessReady(t_ns=time.monotonic_ns(), pid=os.getpid(), facts=reference.facts)])
    while True:
        for command in inbox.get().commands:
            if isinstance(command, Stop):
                return
            if isinstance(command, Submit):
                request = command.request
                try:
                    told = reference.answer(request)
                except Exception as error:
                    failure = describe(error, spec.stage)
                    told = {spec.process: [StageFailed(uid=request.uid, t_ns=time.monotonic_ns(), error=failure)]}
                for process, events in told.items():
                    say(process, events)


def within_message(payload: Payload) -> PayloadRef:
    """A payload of one tensor, of any size, that travels in its message."""
    (tensor,) = payload.tensors
    spec = TensorSpec(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape, offset=0)
    return PayloadRef(tensors=(spec,), meta=payload.meta, nbytes=spec.nbytes, inline=bytes(tensor.data))
