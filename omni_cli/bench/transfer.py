"""A payload through `shm` to another process: one copy in, read in place, against a memcpy of the same bytes.

Both are timed in turn, in one run, from the same source. The memcpy goes into memory of this process that is warm, as
the ring is. The transfer ends when the reader has the payload, and includes the message that tells it so.
"""

import secrets
import time
from collections.abc import Iterator

from omni_cli.bench.deployment import deployed
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
AIMS = {1: None, 64: Aim(kind="at most", limit=1.5)}
"""By size in MiB, of a memcpy."""


def measure_transfers(plan: ExecutionPlan, count: int, interrupts: Interrupts) -> list[Figure]:
    """`plan` has one stage of one replica, which takes media."""
    specs = stage_specs(plan, secrets.token_hex(4), media_bytes=max(AIMS) * MIB)
    found = []
    with deployed(plan, interrupts, specs=specs, run_stage=receive) as deployment:
        for mib, aim in AIMS.items():
            through, memcpy = zip(*_pairs(deployment.running, plan.stages[0].name, mib, count), strict=True)
            ratios = tuple(own / bare for own, bare in zip(through, memcpy, strict=True))
            title = f"{mib} MiB through shm"
            found += [
                Figure(key=f"shm_{mib}mib_ratio", title=f"{title}, of a memcpy", unit="x", samples=ratios, aim=aim),
                Figure(key=f"shm_{mib}mib_ms", title=title, unit="ms", samples=tuple(ns / 1e6 for ns in through)),
            ]
    return found


def _pairs(running: RunningStages, stage: str, mib: int, count: int) -> Iterator[tuple[int, int]]:
    """In ns: from before the put until the reader has it, and the memcpy that is timed beside it."""
    source, target = bytearray(mib * MIB), bytearray(mib * MIB)
    warm = count // 10
    for number in range(warm + count):
        source[0] = source[-1] = number & 0xFF
        start = time.perf_counter_ns()
        target[:] = source
        memcpy_ns = time.perf_counter_ns() - start
        through_ns = _transfer(running, stage, number, source)
        if number >= warm:
            yield through_ns, memcpy_ns


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
