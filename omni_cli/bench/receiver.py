"""The receiving process of a transfer: reads each payload in place and says when it had it.

It runs as a stage process; it imports what a stage may import, so that its start costs what a stage's does.
"""

import itertools
import os
import time

from stages.config import StageSpec
from stages.connectors.registry import open_reader
from stages.errors import StageError
from stages.events import MessageGot, ProcessReady, StepReport
from stages.messages import Deliver, Stop
from stages.worker.channel import Inbox, Outbox


def receive(spec: StageSpec, inbox: Inbox, outbox: Outbox) -> None:
    """Serves the only edge of `spec` until it is told to stop. StageError for a payload that is not the one sent."""
    (edge,) = spec.inputs
    reader = open_reader(edge)
    numbers = itertools.count()

    def say(event: MessageGot | ProcessReady) -> None:
        outbox.put(StepReport(process=spec.process, seq=next(numbers), events=(event,)))

    say(ProcessReady(t_ns=time.monotonic_ns(), pid=os.getpid(), facts=()))
    while True:
        for command in inbox.get().commands:
            if isinstance(command, Stop):
                reader.close()
                return
            if isinstance(command, Deliver) and command.message.ref is not None:
                message = command.message
                (tensor,) = reader.get(command.message.ref).tensors
                got_ns = time.monotonic_ns()
                if {tensor.data[0], tensor.data[-1]} != {message.uid & 0xFF}:
                    raise StageError(f"payload {message.uid} holds {tensor.data[0]} and {tensor.data[-1]}")
                tensor.data.release()
                say(MessageGot(uid=message.uid, t_ns=got_ns, producer=edge.producer, seq=message.seq))
