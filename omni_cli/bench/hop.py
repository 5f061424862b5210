"""How long one control message takes, put to the handler's first line, one way, with nothing else going on.

A real stage process is told to cancel a request that it does not have, and answers. Its answer is stamped in its own
handler, on the clock that all processes share.
"""

import asyncio
import contextlib
import time

from omni_cli.bench.deployment import deployed
from omni_cli.bench.figure import Aim, Figure
from omni_cli.errors import StageFailure
from omni_cli.launch.process import StageProcess
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.stage_client import Received, StageClient
from stages.events import StageCancelled, StepReport
from stages.messages import Cancel, Turn

AIM = Aim(kind="at most", limit=100.0)


def measure_hops(plan: ExecutionPlan, count: int, interrupts: Interrupts) -> tuple[Figure, Figure]:
    """In us: from the orchestrator's side to the stage's handler, and from that to the handler in the event loop.

    `plan` has one stage of one replica.
    """
    with deployed(plan, interrupts) as deployment:
        hops = asyncio.run(_bounce(deployment.running.replicas[0], count))
    down, up = zip(*hops, strict=True)
    return (
        Figure(key="hop_down_us", title="one hop, orchestrator to stage", unit="us", samples=down, aim=AIM),
        Figure(key="hop_up_us", title="one hop, stage to orchestrator", unit="us", samples=up, aim=AIM),
    )


async def _bounce(process: StageProcess, count: int) -> list[tuple[float, float]]:
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[tuple[int, Received]] = asyncio.Queue()

    def handle(message: Received) -> None:
        answers.put_nowait((time.monotonic_ns(), message))

    def receive(client: StageClient, message: Received) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: this is the end of the process
            loop.call_soon_threadsafe(handle, message)

    client = StageClient(process, receive)
    client.start()
    hops, warm = [], count // 10
    for uid in range(warm + count):
        sent_ns = time.monotonic_ns()
        client.send(Turn(commands=(Cancel(uid=uid),), sent_ns=sent_ns))
        received_ns, message = await answers.get()
        stamp_ns = _stamp(message, uid)
        hops.append(((stamp_ns - sent_ns) / 1e3, (received_ns - stamp_ns) / 1e3))
    client.close()
    return hops[warm:]


def _stamp(message: Received, uid: int) -> int:
    """When the stage's handler had the cancel. StageFailure for any other answer."""
    if isinstance(message, StepReport):
        for event in message.events:
            if isinstance(event, StageCancelled) and event.uid == uid:
                return event.t_ns
    raise StageFailure(f"the stage answered {message} to a cancel")
