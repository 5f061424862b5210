"""What one message costs, with nothing else going on: a control message one way, and a payload through `shm`.

Control: a real stage process is told to cancel a request that it does not have, and answers; from the put to the
handler's first line. Its answer is stamped in its own handler, on the clock that all processes share.

Payload: one copy in, read in place by another process, until it has it, with the message that tells it so; against a
memcpy of the same bytes, timed in turn from the same source into memory that is warm, as the ring is.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import TypeVar

from omni_cli.bench.figure import Aim, Figure
from omni_cli.bench.receiver import receive
from omni_cli.deployment import deployed
from omni_cli.errors import StageFailure
from omni_cli.launch.process import StageProcess
from omni_cli.launch.running import RunningStages
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.stage_client import Received, StageClient
from stages.events import MessageGot, StageCancelled, StepReport
from stages.messages import REQUEST, Cancel, Deliver, StreamMessage, Turn
from stages.payload import Payload, Tensor

MIB = 1 << 20
AIM_US = Aim(kind="at most", limit=100.0)
AIMS_BY_MIB = {1: None, 64: Aim(kind="at most", limit=1.5)}

Answer = TypeVar("Answer", StageCancelled, MessageGot)


def measure_hops(plan: ExecutionPlan, count: int, interrupts: Interrupts) -> tuple[Figure, Figure]:
    """From the orchestrator's side to the stage's handler, and from that to the handler in the event loop.

    `plan` has one stage of one replica.
    """
    with deployed(plan, interrupts) as deployment:
        hops = asyncio.run(_bounce(deployment.running.replicas[0], count))
    down, up = zip(*hops, strict=True)
    return (
        Figure(key="hop_down_us", title="one hop, orchestrator to stage", unit="us", samples=down, aim=AIM_US),
        Figure(key="hop_up_us", title="one hop, stage to orchestrator", unit="us", samples=up, aim=AIM_US),
    )


async def _bounce(process: StageProcess, count: int) -> list[tuple[float, float]]:
    """In us: down and up."""
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[tuple[int, Received]] = asyncio.Queue()

    def handle(message: Received) -> None:
        answers.put_nowait((time.monotonic_ns(), message))

    def hear(client: StageClient, message: Received) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: this is the end of the process
            loop.call_soon_threadsafe(handle, message)

    client = StageClient(process, hear)
    client.start()
    hops, warm = [], count // 10
    for uid in range(warm + count):
        sent_ns = time.monotonic_ns()
        client.send(Turn(commands=(Cancel(uid=uid),), sent_ns=sent_ns))
        received_ns, message = await answers.get()
        stamp_ns = _answer(message, StageCancelled, uid).t_ns
        hops.append(((stamp_ns - sent_ns) / 1e3, (received_ns - stamp_ns) / 1e3))
    client.close()
    return hops[warm:]


def measure_transfers(plan: ExecutionPlan, count: int, interrupts: Interrupts) -> list[Figure]:
    """`plan` has one stage of one replica, which takes media."""
    found = []
    with deployed(plan, interrupts, media_bytes=max(AIMS_BY_MIB) * MIB, run_stage=receive) as deployment:
        for mib, aim in AIMS_BY_MIB.items():
            through, memcpy = zip(*_transfers(deployment.running, plan.stages[0].name, mib, count), strict=True)
            ratios = tuple(own / bare for own, bare in zip(through, memcpy, strict=True))
            title = f"{mib} MiB through shm"
            found += [
                Figure(key=f"shm_{mib}mib_ratio", title=f"{title}, of a memcpy", unit="x", samples=ratios, aim=aim),
                Figure(key=f"shm_{mib}mib_ms", title=title, unit="ms", samples=tuple(ns / 1e6 for ns in through)),
            ]
    return found


def _transfers(running: RunningStages, stage: str, mib: int, count: int) -> Iterator[tuple[int, int]]:
    """In ns: from before the put until the reader has it, and the memcpy."""
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
    tensor = Tensor(name="payload", dtype="uint8", shape=(len(source),), data=memoryview(source))
    port, process = running.media_ports[stage], running.replicas[0]
    start_ns = time.monotonic_ns()
    put = port.put((Payload(tensors=(tensor,)),))
    if put is None:
        raise StageFailure(f"the ring into {stage} has no room for the only payload in it", stage=stage)
    ref, lease = put
    message = StreamMessage(
        uid=number, producer=REQUEST, consumer=stage, seq=0, units=1, eos=True, ref=ref, lease=lease
    )
    process.send(Turn(commands=(Deliver(message=message),), sent_ns=start_ns))
    got_ns = _answer(process.receive(), MessageGot, number).t_ns
    if lease is not None:
        port.reclaim(lease)
    return got_ns - start_ns


def _answer(message: object, kind: type[Answer], uid: int) -> Answer:
    """The stage's word on `uid`. StageFailure for any other answer."""
    if isinstance(message, StepReport):
        for event in message.events:
            if isinstance(event, kind) and event.uid == uid:
                return event
    raise StageFailure(f"the stage answered {message} where {kind.__name__} of {uid} was due")
