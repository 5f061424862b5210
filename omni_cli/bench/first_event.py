"""What `omni serve` adds to the first piece of text: over HTTP and from `OmniEngine` in this process, in turn.

Two deployments of one plan stand side by side, and one of them works at a time. Both have no trace.
"""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omni_cli.bench.figure import Aim, Figure
from omni_cli.bench.throughput import OUTPUTS, PROMPT, WORDS, make
from omni_cli.deployment import carry, deployed
from omni_cli.errors import LaunchError, StageFailure
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.engine import OmniEngine

AIM = Aim(kind="at most", limit=2.0)

_LISTENS = re.compile(r"on http://127\.0\.0\.1:(\d+)")
_ANSWER_S = 30.0
_STOP_S = 20.0
_END = b"\r\n0\r\n\r\n"  # of a chunked body


def measure_first_events(
    plan: ExecutionPlan, count: int, interrupts: Interrupts, folder: Path
) -> tuple[Figure, Figure, Figure]:
    """In ms, from the request to the first piece of text; neighbours make a pair. The server's run folder and its log
    go into `folder`. OmniError if a request fails."""
    found: list[tuple[float, float]] = []
    with _served(WORDS, folder) as port, deployed(plan, interrupts) as deployment:

        async def pairs(engine: OmniEngine) -> None:
            with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S) as connection:
                for number in range(count // 10 + count):
                    if number % 2:
                        inside, over = await _engine_ms(engine, number), _server_ms(connection, number)
                    else:
                        over, inside = _server_ms(connection, number), await _engine_ms(engine, number)
                    found.append((inside, over))

        carry(pairs, interrupts, deployment)
    inside, over = zip(*found[count // 10 :], strict=True)
    added = tuple(own - bare for bare, own in zip(inside, over, strict=True))
    return (
        Figure(key="first_engine_ms", title="first text, engine", unit="ms", samples=inside),
        Figure(key="first_server_ms", title="first text, server", unit="ms", samples=over),
        Figure(key="server_added_ms", title="what the server adds to it", unit="ms", samples=added, aim=AIM),
    )


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


async def _engine_ms(engine: OmniEngine, number: int) -> float:
    start, first = time.perf_counter(), None
    async for chunk in engine.generate(make(number)):
        if first is None and chunk.text:
            first = time.perf_counter() - start
    return _in_ms(first, number)


def _server_ms(connection: socket.socket, number: int) -> float:
    """By a client that costs next to nothing. Nothing else is to be done meanwhile, so that the loop may wait."""
    asked = {"messages": [{"role": "user", "content": PROMPT}], "modalities": OUTPUTS, "seed": number, "stream": True,
             "audio": {"format": "pcm16"}}  # fmt: skip
    body = json.dumps(asked)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: omni\r\nContent-Length: {len(body)}\r\n"
    start, first, heard = time.perf_counter(), None, b""
    connection.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
    while not heard.endswith(_END) and (data := connection.recv(1 << 16)):
        heard += data
        if first is None and b'"delta":{"content":"' in heard:
            first = time.perf_counter() - start
    return _in_ms(first, number)


def _in_ms(seconds: float | None, number: int) -> float:
    if seconds is None:
        raise StageFailure(f"request {number} gave no text", request_id=str(number))
    return 1e3 * seconds
