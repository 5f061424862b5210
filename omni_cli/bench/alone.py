"""One stage process without the others: what feeds it and what takes from it is here, at once.

Worker, scheduler and runner are those of a run; so are its rings. Nobody reads what it hands on.
"""

import itertools
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from omni_cli.bench.figure import number
from omni_cli.bench.report import Facts
from omni_cli.bench.steps import StepLog
from omni_cli.deployment import deployed
from omni_cli.errors import StageFailure
from omni_cli.launch.process import StageProcess
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.plan.spec import stage_spec
from omni_cli.runtime.request import OmniRequest
from omni_cli.streams import say
from stages.config import StageSpec
from stages.events import MessagePut, OutputProduced, StageFailed, StageFinished, StepDone, StepReport
from stages.lease import Lease
from stages.messages import (
    REQUEST,
    Command,
    Deliver,
    ProcessFailed,
    Reclaim,
    Sampling,
    StageRequest,
    StreamMessage,
    Submit,
    Turn,
)
from stages.models.registry import Feed
from stages.payload import Payload, PayloadRef, layout
from stages.runners.device_rates import COPY_FACT, MATMUL_FACT, tell_device_rates


def lonely_spec(plan: ExecutionPlan, stage: str, run_id: str) -> StageSpec:
    """The stage's first replica as in the plan, but that what comes in comes within the messages."""
    spec = stage_spec(plan, stage, 0, run_id)
    return replace(spec, inputs=tuple(replace(edge, connector="inline", rings=()) for edge in spec.inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """Bytes that the device of a stage copies in a second, and FLOP of its matrix products."""

    bytes_per_s: float
    flop_per_s: float


def device_rates(plan: ExecutionPlan, stage: str, interrupts: Interrupts) -> DeviceRates:
    """Measured in a process of its own where the stage's first replica would be."""
    say("what the device can do")
    spec, log = lonely_spec(plan, stage, secrets.token_hex(4)), StepLog(plan)
    with deployed(plan, interrupts, log, specs=[spec], run_stage=tell_device_rates):
        facts = log.facts[spec.process]
        return DeviceRates(bytes_per_s=float(facts[COPY_FACT]), flop_per_s=float(facts[MATMUL_FACT]))


def peak_fact(flop_per_s: float) -> Facts:
    return (("peak", f"{number(flop_per_s / 1e12)} TFLOP/s"),) if flop_per_s else ()


Order = tuple[OmniRequest, Feed]
"""A request for one stage, and what it is fed; nothing for a stage that is asked itself."""


class LonelyStage:
    """Carries batches of orders, one after the other."""

    def __init__(self, process: StageProcess) -> None:
        self._process = process
        self._spec = process.spec
        self._uids = itertools.count()

    def carry(self, orders: Sequence[Order], pieces: Sequence[int]) -> list[StepDone]:
        """All steps until the last order is done. Messages are delivered in `pieces`, so many to each order, the next
        when the step over those before it is done. StageFailure if one fails."""
        streams, submits, running = [], list[Command](), set[int]()
        for request, feed in orders:
            uid = next(self._uids)
            running.add(uid)
            streams.append(self._messages(uid, feed))
            submits.append(Submit(request=self._submitted(uid, request, fed=bool(feed))))
        left = iter(pieces)
        self._send([*submits, *_next(streams, next(left, 0))])
        steps: list[StepDone] = []
        while running:
            report = receive(self._process)
            commands: list[Command] = []
            for event in report.events:
                if isinstance(event, StepDone):
                    steps.append(event)
                    commands += _next(streams, next(left, 0))
                elif isinstance(event, StageFinished):
                    running.discard(event.uid)
                elif isinstance(event, StageFailed):
                    raise StageFailure(f"{self._process.process}: {event.error.kind}: {event.error.message}")
            leases = _leases(report)
            if leases:
                commands.insert(0, Reclaim(leases=leases))
            self._send(commands)
        return steps

    def _submitted(self, uid: int, request: OmniRequest, *, fed: bool) -> StageRequest:
        spec = self._spec
        return StageRequest(
            uid=uid,
            seed=request.seed,
            inputs=tuple(edge.producer for edge in spec.inputs if fed),
            consumers=tuple(edge.consumer for edge in spec.consumers if edge.consumer != REQUEST),
            outputs=spec.outputs,
            sampling=request.sampling.get(spec.stage, Sampling()),
            conversation=() if fed else request.conversation,
            voice=request.voice,
            image=request.image,
            options=request.options,
        )

    def _messages(self, uid: int, feed: Feed) -> Iterator[Command]:
        for seq, (units, payload) in enumerate(feed):
            yield Deliver(
                message=StreamMessage(
                    uid=uid,
                    producer=self._spec.inputs[0].producer,
                    consumer=self._spec.stage,
                    seq=seq,
                    units=units,
                    eos=seq == len(feed) - 1,
                    ref=_inline(payload),
                )
            )

    def _send(self, commands: Sequence[Command]) -> None:
        if commands:
            self._process.send(Turn(commands=tuple(commands), sent_ns=0))


def receive(process: StageProcess) -> StepReport:
    """Its next report. StageFailure if it gives up or dies."""
    while True:
        try:
            message = process.receive()
        except (EOFError, OSError):
            process.reap()
            raise StageFailure(f"{process.process} is dead: {process.death()}") from None
        if isinstance(message, StepReport):
            return message
        if isinstance(message, ProcessFailed):
            raise StageFailure(f"{message.process} failed: {message.error.message}")


def _next(streams: Sequence[Iterator[Command]], count: int) -> list[Command]:
    return [command for stream in streams for command in itertools.islice(stream, count)]


def _leases(report: StepReport) -> tuple[Lease, ...]:
    """Of all that was put: it counts as read."""
    held = [event.message.lease for event in report.events if isinstance(event, MessagePut)]
    held += [event.lease for event in report.events if isinstance(event, OutputProduced)]
    return tuple(lease for lease in held if lease is not None)


def _inline(payload: Payload) -> PayloadRef:
    tensors, nbytes = layout(tuple((t.name, t.dtype, t.shape) for t in payload.tensors))
    data = bytearray(nbytes)
    for spec, tensor in zip(tensors, payload.tensors, strict=True):
        data[spec.offset : spec.offset + spec.nbytes] = tensor.data
    return PayloadRef(tensors=tensors, meta=payload.meta, nbytes=nbytes, inline=bytes(data))
