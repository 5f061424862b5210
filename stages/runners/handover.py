"""How fast tensors pass from stage to stage: a process that hands them over, and one that takes and checks them.

Both stand in for the worker of a stage (`run_stage`) and load no model. What is measured is what an edge does: a put,
the message by way of the parent, a complete copy on the consumer's own device. Their parent has no torch.
"""

import itertools
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.config import StageSpec
from stages.connectors.device_memory import DeviceMemoryError
from stages.connectors.registry import open_reader, open_writer
from stages.errors import StageError
from stages.events import LeaseReleased, MessageGot, MessagePut, ProcessReady, StageEvent, StepReport
from stages.lease import first_number
from stages.messages import Deliver, Reclaim, Stop, StreamMessage
from stages.payload import Payload
from stages.runners.device_rates import seconds
from stages.worker.channel import Inbox, Outbox

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Make = Callable[[int, int, torch.device], torch.Tensor]

_TIMES = 20
_VALUES = 251  # what a tensor is full of: its number, modulo a prime


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """The options of both: `sizes` in bytes, each handed over `count` times, at most `ahead` before one is reclaimed.

    The first turn begins it, whatever is in it.
    """

    sizes: tuple[int, ...]
    count: int
    ahead: int = 1


def copy_fact(nbytes: int) -> str:
    """Of the taking process: the median time of a copy of so many bytes within its device, in us."""
    return f"copy_{nbytes}_us"


def made(number: int, nbytes: int, device: "torch.device") -> "torch.Tensor":
    """The tensor of that number, complete."""
    tensor = filled(number, nbytes, device)
    _wait(device)
    return tensor


def filled(number: int, nbytes: int, device: "torch.device") -> "torch.Tensor":
    """The same, while the device may still be at work on it."""
    import torch

    return torch.full((nbytes,), number % _VALUES, dtype=torch.uint8, device=device)


def run_handover(spec: StageSpec, inbox: Inbox, outbox: Outbox, make: "Make" = made) -> None:
    """Hands over what `make` gives if the stage has a consumer, else takes. Raises StageError for a tensor that is not
    the one put."""
    work = spec.options
    if not isinstance(work, Handover):
        raise StageError(f"{spec.process} is not told what to hand over")
    if spec.consumers:
        _give(spec, work, inbox, outbox, make)
    else:
        _take(spec, work, inbox, outbox)


def _give(spec: StageSpec, work: Handover, inbox: Inbox, outbox: Outbox, make: "Make") -> None:
    from stages.runners.device import open_device
    from stages.runners.tensors import hand_over

    device = open_device(spec)
    (edge,) = spec.consumers
    first = first_number(spec.generation)
    writer = open_writer(edge, spec.process, itertools.count(first))
    say = _Say(spec, outbox)
    say(ProcessReady(t_ns=time.monotonic_ns(), pid=os.getpid(), facts=()))
    out: set[int] = set()

    def listen() -> bool:
        """False: it is told to stop."""
        for command in inbox.get().commands:
            for lease in command.leases if isinstance(command, Reclaim) else ():
                writer.reclaim(lease)
                out.discard(lease.number)
            if isinstance(command, Stop):
                return False
        return True

    if not listen():  # nothing is said unasked: while others still load, nobody would pass it on
        return
    for number, size in enumerate((size for size in work.sizes for _ in range(work.count)), first):
        tensor = make(number, size, device)
        start_ns = time.monotonic_ns()
        while len(out) >= work.ahead or (put := writer.put((Payload(tensors=(hand_over("it", tensor),)),))) is None:
            if not listen():
                return
            start_ns = time.monotonic_ns()
        ref, held = put
        if held is not None:
            out.add(held.number)
        message = StreamMessage(
            uid=number, producer=spec.stage, consumer=edge.consumer, seq=0, units=1, eos=True, ref=ref, lease=held
        )
        say(MessagePut(uid=number, t_ns=start_ns, message=message))
    while listen():
        pass


def _take(spec: StageSpec, work: Handover, inbox: Inbox, outbox: Outbox) -> None:
    import torch

    from stages.runners.device import open_device
    from stages.runners.tensors import from_payload

    device = open_device(spec)
    (edge,) = spec.inputs
    reader = open_reader(edge)
    say = _Say(spec, outbox)
    facts = tuple((copy_fact(size), f"{_copy_us(size, device):.2f}") for size in work.sizes)
    say(ProcessReady(t_ns=time.monotonic_ns(), pid=os.getpid(), facts=facts))
    while True:
        for command in inbox.get().commands:
            if isinstance(command, Stop):
                return
            if not isinstance(command, Deliver) or (ref := command.message.ref) is None:
                continue
            uid, got = command.message.uid, list[StageEvent]()
            try:
                (tensor,) = reader.get(ref).tensors
                copy = from_payload(tensor, device)
                _wait(device)
                got.append(MessageGot(uid=uid, t_ns=time.monotonic_ns(), producer=edge.producer, seq=0))
                tensor.release()
                if not bool(torch.all(copy == uid % _VALUES)):
                    raise StageError(f"tensor {uid} is not what was put: it holds {copy.unique().tolist()}")
            except DeviceMemoryError:
                pass  # whoever put it has died: it is not got
            if command.message.lease is not None:
                got.append(LeaseReleased(uid=uid, t_ns=time.monotonic_ns(), lease=command.message.lease))
            say(*got)


class _Say:
    def __init__(self, spec: StageSpec, outbox: Outbox) -> None:
        self._process, self._outbox, self._numbers = spec.process, outbox, itertools.count()

    def __call__(self, *events: StageEvent) -> None:
        self._outbox.put(StepReport(process=self._process, seq=next(self._numbers), events=events))


def _copy_us(nbytes: int, device: "torch.device") -> float:
    import torch

    source = torch.ones(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return seconds(device, lambda: target.copy_(source), _TIMES) * 1e6


def _wait(device: "torch.device") -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
