"""How long one control message takes, put to the handler's first line, one way, with nothing else going on.

A real stage process is told to cancel a request that it does not have, and answers. Its answer is stamped in its own
handler, on the clock that all processes share.
"""

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass, field

from omni_cli.bench.deployment import started
from omni_cli.bench.effort import Effort
from omni_cli.bench.figure import Aim, Figure
from omni_cli.errors import StageFailure
from omni_cli.launch.process import StageProcess
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.plan.spec import stage_specs
from omni_cli.runtime.stage_client import Received, StageClient
from stages.events import StageCancelled, StepReport
from stages.messages import Cancel, Turn

AIM_US = 100.0


@dataclass(slots=True)
class Hops:
    """In ns: from the orchestrator's side to the stage's handler, and from that to the handler in the event loop."""

    down: list[int] = field(default_factory=list)
    up: list[int] = field(default_factory=list)

    def figures(self) -> tuple[Figure, ...]:
        return tuple(
            Figure(
                key=key,
                title=title,
                unit="us",
                samples=tuple(ns / 1e3 for ns in hops),
                aim=Aim(kind="at most", limit=AIM_US),
            )
            for key, title, hops in (
                ("hop_down_us", "one hop, orchestrator to stage", self.down),
                ("hop_up_us", "one hop, stage to orchestrator", self.up),
            )
        )


def measure_hops(plan: ExecutionPlan, effort: Effort, interrupts: Interrupts) -> Hops:
    """`plan` has one stage of one replica."""
    specs = stage_specs(plan, secrets.token_hex(4))
    with started(plan, specs, interrupts, listener=lambda source, event: None) as running:
        return asyncio.run(_bounce(running.replicas[0], effort.hops))


async def _bounce(process: StageProcess, count: int) -> Hops:
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[tuple[int, Received]] = asyncio.Queue()

    def handle(message: Received) -> None:
        answers.put_nowait((time.monotonic_ns(), message))

    def receive(client: StageClient, message: Received) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: this is the end of the process
            loop.call_soon_threadsafe(handle, message)

    client = StageClient(process, receive)
    client.start()
    hops, warm = Hops(), count // 10
    for uid in range(warm + count):
        sent_ns = time.monotonic_ns()
        client.send(Turn(commands=(Cancel(uid=uid),), sent_ns=sent_ns))
        received_ns, message = await answers.get()
        stamp_ns = _stamp(message, uid)
        if uid >= warm:
            hops.down.append(stamp_ns - sent_ns)
            hops.up.append(received_ns - stamp_ns)
    client.close()
    return hops


def _stamp(message: Received, uid: int) -> int:
    """When the stage's handler had the cancel. StageFailure for any other answer."""
    if isinstance(message, StepReport):
        for event in message.events:
            if isinstance(event, StageCancelled) and event.uid == uid:
                return event.t_ns
    raise StageFailure(f"the stage answered {message} to a cancel")
