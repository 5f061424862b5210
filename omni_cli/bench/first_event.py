"""What `omni serve` adds to the first piece of text: over HTTP and from `OmniEngine` in this process, in turn.

Two deployments of one plan stand side by side, and one of them works at a time. Both have no trace.
"""

import asyncio
import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from omni_cli.bench.deployment import interruptible, plain
from omni_cli.bench.effort import Effort
from omni_cli.bench.figure import Aim, Figure
from omni_cli.bench.workload import OUTPUTS, PROMPT, WORDS
from omni_cli.errors import LaunchError, StageFailure
from omni_cli.launch.running import RunningStages
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import Listener
from omni_cli.runtime.request import OmniRequest
from stages.messages import ChatMessage, Part

AIM_MS = 2.0

_LISTENS = re.compile(r"on http://127\.0\.0\.1:(\d+)")
_ANSWER_S = 30.0
_STOP_S = 20.0


@dataclass(slots=True)
class FirstEvents:
    """In ms, from the request to the first piece of text; neighbours make a pair."""

    engine: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)

    def figures(self) -> tuple[Figure, ...]:
        added = tuple(over - inside for over, inside in zip(self.server, self.engine, strict=True))
        aim = Aim(kind="at most", limit=AIM_MS)
        return (
            Figure(key="first_engine_ms", title="first text, engine", unit="ms", samples=tuple(self.engine)),
            Figure(key="first_server_ms", title="first text, server", unit="ms", samples=tuple(self.server)),
            Figure(key="server_added_ms", title="what the server adds to it", unit="ms", samples=added, aim=aim),
        )


def measure_first_events(plan: ExecutionPlan, effort: Effort, interrupts: Interrupts, folder: Path) -> FirstEvents:
    """The server's run folder and its log go into `folder`. OmniError if a request fails."""
    found = FirstEvents()
    with _served(WORDS, folder) as port, plain(plan, interrupts) as (running, listener):
        asyncio.run(_measure(plan, running, listener, port, effort, interrupts, found))
    return found


@contextmanager
def _served(words: Sequence[str], folder: Path) -> Iterator[int]:
    """The port of an `omni serve` that is ready; stopped on leaving."""
    command = [sys.executable, "-m", "omni_cli", "serve", *words, "serve.port=0", "trace.enabled=false"]
    server = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        said = []
        for line in server.stderr or ():
            said.append(line)
            if found := _LISTENS.search(line):
                yield int(found[1])
                return
        raise LaunchError(f"omni serve did not start:\n{''.join(said)}")
    finally:
        server.terminate()
        try:
            server.communicate(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()


async def _measure(
    plan: ExecutionPlan,
    running: RunningStages,
    listener: Listener,
    port: int,
    effort: Effort,
    interrupts: Interrupts,
    found: FirstEvents,
) -> None:
    async with OmniEngine(plan, running, listener=listener) as engine:
        await interruptible(_pairs(engine, port, effort.firsts, found), interrupts)


async def _pairs(engine: OmniEngine, port: int, count: int, found: FirstEvents) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
    warm = count // 10
    for number in range(warm + count):
        if number % 2:
            inside, over = await _engine_ms(engine, number), _server_ms(connection, number)
        else:
            over, inside = _server_ms(connection, number), await _engine_ms(engine, number)
        if number >= warm:
            found.engine.append(inside)
            found.server.append(over)
    connection.close()


async def _engine_ms(engine: OmniEngine, number: int) -> float:
    conversation = (ChatMessage(role="user", parts=(Part(kind="text", text=PROMPT),)),)
    start, first = time.perf_counter(), None
    request = OmniRequest(request_id=f"first-{number}", seed=number, conversation=conversation, outputs=OUTPUTS)
    async for chunk in engine.generate(request):
        if first is None and chunk.text:
            first = time.perf_counter() - start
    return _in_ms(first, number)


def _server_ms(connection: http.client.HTTPConnection, number: int) -> float:
    """Nothing else is to be done meanwhile, so that the loop may wait."""
    asked = {"messages": [{"role": "user", "content": PROMPT}], "modalities": OUTPUTS, "seed": number, "stream": True,
             "audio": {"format": "pcm16"}}  # fmt: skip
    start, first = time.perf_counter(), None
    connection.request("POST", "/v1/chat/completions", json.dumps(asked), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if first is None and b'"delta":{"content":"' in line:
            first = time.perf_counter() - start
    return _in_ms(first, number)


def _in_ms(seconds: float | None, number: int) -> float:
    if seconds is None:
        raise StageFailure(f"request {number} gave no text", request_id=str(number))
    return 1e3 * seconds
