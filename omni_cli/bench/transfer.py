"""A payload through `shm` to another process: one copy in, read in place, against a memcpy of the same bytes.

Both are timed in turn, in one run, from the same source. The memcpy goes into memory of this process that is warm, as
the ring is. The transfer ends when the reader has the payload, and includes the message that tells it so.
"""

import secrets
import time
from dataclasses import dataclass, field

from omni_cli.bench.deployment import started
from omni_cli.bench.effort import Effort
from omni_cli.bench.figure import Aim, Figure
from omni_cli.bench.receiver import receive
from omni_cli.errors import StageFailure
from omni_cli.launch.running import RunningStages
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.plan.spec import stage_specs
from stages.events import MessageGot, StepReport
from stages.messages import REQUEST, Deliver, StreamMessage, Turn
from stages.payload import Payload, Tensor

MIB = 1 << 20
SIZES_MIB = (1, 64)
AIM_RATIOS = {64: 1.5}


@dataclass(slots=True)
class Transfers:
    """Of one size, in ns: from before the put until the reader has it, and the memcpy that was timed beside it."""

    mib: int
    through_ns: list[int] = field(default_factory=list)
    memcpy_ns: list[int] = field(default_factory=list)

    def figures(self) -> tuple[Figure, ...]:
        pairs = zip(self.through_ns, self.memcpy_ns, strict=True)
        limit = AIM_RATIOS.get(self.mib)
        return (
            Figure(
                key=f"shm_{self.mib}mib_ratio",
                title=f"{self.mib} MiB through shm, of a memcpy",
                unit="x",
                samples=tuple(through / memcpy for through, memcpy in pairs),
                aim=None if limit is None else Aim(kind="at most", limit=limit),
            ),
            Figure(
                key=f"shm_{self.mib}mib_ms",
                title=f"{self.mib} MiB through shm",
                unit="ms",
                samples=tuple(ns / 1e6 for ns in self.through_ns),
            ),
        )


def measure_transfers(plan: ExecutionPlan, effort: Effort, interrupts: Interrupts) -> tuple[Transfers, ...]:
    """`plan` has one stage of one replica, which takes media."""
    specs = stage_specs(plan, secrets.token_hex(4), media_bytes=max(SIZES_MIB) * MIB)
    with started(plan, specs, interrupts, listener=lambda source, event: None, run_stage=receive) as running:
        return tuple(_measure(running, plan.stages[0].name, mib, effort.transfers) for mib in SIZES_MIB)


def _measure(running: RunningStages, stage: str, mib: int, count: int) -> Transfers:
    source, target = bytearray(mib * MIB), bytearray(mib * MIB)
    found, warm = Transfers(mib), count // 10
    for number in range(warm + count):
        source[0] = source[-1] = number & 0xFF
        start = time.perf_counter_ns()
        target[:] = source
        memcpy_ns = time.perf_counter_ns() - start
        through_ns = _transfer(running, stage, number, source)
        if number >= warm:
            found.memcpy_ns.append(memcpy_ns)
            found.through_ns.append(through_ns)
    return found


def _transfer(running: RunningStages, stage: str, number: int, source: bytearray) -> int:
    """ns from before the put until the reader has it."""
    tensor = Tensor(name="payload", dtype="uint8", shape=(len(source),), data=memoryview(source))
    payload = Payload(tensors=(tensor,))
    port, process = running.media_ports[stage], running.replicas[0]
    start_ns = time.monotonic_ns()
    put = port.put((payload,))
    if put is None:
        raise StageFailure(f"the ring into {stage} has no room for the only payload in it", stage=stage)
    ref, lease = put
    message = StreamMessage(
        uid=number, producer=REQUEST, consumer=stage, seq=0, units=1, eos=True, ref=ref, lease=lease
    )
    process.send(Turn(commands=(Deliver(message=message),), sent_ns=start_ns))
    got_ns = _got(process.receive(), number)
    if lease is not None:
        port.reclaim(lease)
    return got_ns - start_ns


def _got(message: object, number: int) -> int:
    if isinstance(message, StepReport):
        for event in message.events:
            if isinstance(event, MessageGot) and event.uid == number:
                return event.t_ns
    raise StageFailure(f"the receiver answered {message} to payload {number}")
