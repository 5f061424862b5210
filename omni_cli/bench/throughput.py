"""Requests a second with the trace on, and what the trace costs: blocks with and without it in turn, in one run.

Two deployments of one plan stand side by side, and one of them works at a time. Neighbouring blocks make a pair, and
their order alternates, so that a machine whose speed drifts moves both of them.
"""

import itertools
import time
from dataclasses import dataclass
from pathlib import Path

from omni_cli.bench.figure import Aim, Figure
from omni_cli.bench.load import closed_loop
from omni_cli.bench.replayed import measure_replay
from omni_cli.deployment import Deployment, carry, deployed
from omni_cli.errors import StageFailure
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.request import OmniRequest
from omni_cli.streams import say
from stages.messages import ChatMessage, Part

# `synthetic` without any delay, so that only the machinery is measured
CONCURRENCY = 32
FRAMES = 8
PROMPT = "one two three four five six seven eight"  # eight tokens of the synthetic tokenizer
OUTPUTS = ("text", "audio")
UNITS = {"text": len(PROMPT.split()), "audio": FRAMES}

WORDS = (
    "recipe=synthetic",
    *(f"deploy.stages.{stage}.max_batch={CONCURRENCY}" for stage in ("thinker", "talker", "code2wav")),
    f"synthetic.frames={FRAMES}",
)

AIM_RATE = Aim(kind="at least", limit=300.0)
AIM_TRACE = Aim(kind="at most", limit=3.0)


def make(number: int) -> OmniRequest:
    """Text and speech, the same each time but for its id and its seed."""
    conversation = (ChatMessage(role="user", parts=(Part(kind="text", text=PROMPT),)),)
    return OmniRequest(request_id=str(number), seed=number, conversation=conversation, outputs=OUTPUTS)


@dataclass(frozen=True, slots=True)
class Block:
    """`cpu_s` is what all processes of the deployment took, the parent's threads included."""

    wall_s: float
    cpu_s: float


class Side:
    """One of the two deployments, under load: callers who ask for text and speech, and then again."""

    def __init__(self, engine: OmniEngine, deployment: Deployment) -> None:
        self._engine = engine
        self._numbers = itertools.count()
        # linux/posix-timers.h: the number of a process's CPU clock is made of its pid
        self._clocks = [(~replica.pid << 3) | 2 for replica in deployment.running.replicas]

    async def block(self, requests: int) -> Block:
        """From the first request's admission to the last one's end. OmniError if one fails."""
        cpu_s, start = self._cpu_s(), time.perf_counter()
        await closed_loop(requests, CONCURRENCY, self._one)
        return Block(time.perf_counter() - start, self._cpu_s() - cpu_s)

    async def _one(self, _: int, due_ns: int) -> None:
        number = next(self._numbers)
        units = dict.fromkeys(OUTPUTS, 0)
        async for chunk in self._engine.generate(make(number)):
            units[chunk.modality] += chunk.units
        if units != UNITS:
            raise StageFailure(f"request {number} gave {units} where {UNITS} was asked for", request_id=str(number))

    def _cpu_s(self) -> float:
        return time.process_time() + sum(map(time.clock_gettime, self._clocks))


def measure_throughput(
    plan: ExecutionPlan, pairs: int, requests: int, interrupts: Interrupts, folder: Path
) -> tuple[Figure, ...]:
    """Takes `pairs` of blocks of `requests` each, and replays the trace of its own run. TraceError if that is not
    clean, or decided otherwise."""
    traced: list[Block] = []
    plain: list[Block] = []
    path = folder / "trace.jsonl"
    with deployed(plan, interrupts, trace=path) as on, deployed(plan, interrupts) as off:

        async def alternate(on_engine: OmniEngine, off_engine: OmniEngine) -> None:
            sides = ((Side(on_engine, on), traced), (Side(off_engine, off), plain))
            for side, _ in sides:
                await side.block(requests)  # warm
            for pair in range(pairs):
                for side, blocks in sides[:: 1 if pair % 2 else -1]:
                    blocks.append(await side.block(requests))
                say(f"requests: pair {pair + 1} of {pairs}")

        carry(alternate, interrupts, on, off)
    say("replay of the trace")
    replayed = measure_replay(plan, path)
    rates = tuple(requests / block.wall_s for block in traced)
    both = list(zip(traced, plain, strict=True))
    wall = tuple(100 * (with_it.wall_s / without.wall_s - 1) for with_it, without in both)
    cpu = tuple(100 * (with_it.cpu_s / without.cpu_s - 1) for with_it, without in both)
    each = tuple(1e6 * block.cpu_s / requests for block in traced)
    return (
        Figure(key="requests_per_s", title="requests, trace on", unit="1/s", samples=rates, aim=AIM_RATE),
        Figure(key="trace_cost_percent", title="cost of the trace, in time", unit="%", samples=wall, aim=AIM_TRACE),
        Figure(key="trace_cost_cpu_percent", title="cost of the trace, in CPU time", unit="%", samples=cpu),
        Figure(key="cpu_us_per_request", title="CPU time a request, all processes", unit="us", samples=each),
        replayed,
    )
