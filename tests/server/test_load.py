"""Many requests, at once and one after the other, half of them given up: nothing is left behind and nothing grows."""

import asyncio
import base64
import contextlib
import json
import os
import random
import re
import socket
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path

import httpx
import numpy as np

from tests.integration.cli import leaves_nothing, wait_for
from tests.server.serving import Server, serving

REQUESTS = 4000 if os.environ.get("OMNI_SOAK") else 300
WARM = 100
MIB = 1 << 20


def call(number: int, *, stream: bool, **more: object) -> bytes:
    """A chat call as it goes over the wire."""
    asked = {"messages": [{"role": "user", "content": f"number {number}"}], "seed": number, "stream": stream, **more}
    body = json.dumps(asked).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + body


async def whole(port: int, sent: bytes) -> bytes:
    """The whole answer, head included."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answer = await reader.read()
    writer.close()
    return answer


async def abandoned(port: int, sent: bytes, drawn: random.Random) -> None:
    """Leaves in the middle of its request, right after it, within the answer, or after a time; politely or not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    phase = drawn.randrange(4)
    writer.write(sent[: drawn.randrange(1, len(sent))] if phase == 0 else sent)
    await writer.drain()
    if phase == 2:
        await reader.read(drawn.randrange(1, 4096))
    elif phase == 3:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), drawn.uniform(0, 0.1))
    if drawn.random() < 0.5:
        linger = struct.pack("ii", 1, 0)  # the connection is reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()


async def at_once(concurrency: int, numbers: range, one: Callable[[int], Coroutine[None, None, None]]) -> None:
    waiting = iter(numbers)

    async def caller() -> None:
        for number in waiting:
            await one(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(caller())


def gauges(server: Server) -> dict[str, float]:
    """What is going on at the moment: everything that must be 0 when nothing is."""
    text = httpx.get(f"{server.url}/metrics", timeout=30).text
    found = re.findall(r"^(omni_(?:stage_(?:queued|running)|server_calls)\S+) (\S+)$", text, re.MULTILINE)
    assert found
    return {name: float(value) for name, value in found}


def size(pid: int) -> tuple[int, int]:
    """Resident bytes and descriptors of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def sizes(server: Server) -> dict[str, tuple[int, int]]:
    """When nothing is going on."""
    wait_for(lambda: not any(gauges(server).values()), "an idle server")
    lines = (server.run / "trace.jsonl").read_text(encoding="utf-8").splitlines()  # the last one may be torn
    started = [json.loads(line) for line in lines if line.startswith('{"kind":"process_started"')]
    assert started
    return {"server": size(server.process.pid), **{event["process"]: size(event["pid"]) for event in started}}


def judge(measured: list[dict[str, tuple[int, int]]], step: int) -> None:
    """R09 and R17: measured each `step` requests, from request `WARM` on."""
    for process in measured[0]:
        resident, descriptors = zip(*(sizes[process] for sizes in measured), strict=True)
        print(f"{process}: {[round(r / MIB, 1) for r in resident]} MiB, {descriptors} descriptors")
        assert resident[-1] - resident[0] <= 20 * MIB, process
        assert max(descriptors) <= descriptors[0] + 5, process
        settled = resident[6:]  # the allocator and the search for cycles need about a thousand requests to settle
        if len(settled) > 5:
            slope = np.polyfit(np.arange(len(settled)) * step, settled, 1)[0]
            print(f"{process}: {slope:.0f} bytes a request")
            assert slope <= 1024, process


def test_r09_r15_r17_nothing_grows_over_many_requests_of_which_half_are_given_up(tmp_path):
    drawn = random.Random(15)

    async def one(number: int) -> None:
        slowed = {"synthetic": {"frames": 20, "delay_ms": {"talker": number % 3}}} if number % 4 > 1 else {}
        sent = call(number, stream=drawn.random() < 0.5, **slowed)
        if number % 2:
            await abandoned(server.port, sent, drawn)
        else:
            answer = await whole(server.port, sent)
            assert b" 200 OK\r\n" in answer, answer

    with leaves_nothing(), serving("serve.max_concurrency=16", "serve.max_queue=64", cwd=tmp_path) as server:
        asyncio.run(at_once(8, range(WARM), one))
        measured = [sizes(server)]
        for first in range(WARM, REQUESTS, 200):
            concurrency = 1 if first // 200 % 2 else 8
            asyncio.run(at_once(concurrency, range(first, min(first + 200, REQUESTS)), one))
            measured.append(sizes(server))
        judge(measured, 200)
        assert server.chat().status_code == 200
        assert len(server.lines) < REQUESTS  # at most one for each that was given up
        assert server.stop() == 143


def heard(events: list[dict]) -> dict[str, object]:
    """What a client has of a streamed answer: the pieces joined in the order in which they came."""
    first, *middle = events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"] for event in events[-1:]] == [[]]
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert len({event["id"] for event in events}) == 1
    deltas = [choice["delta"] for event in middle for choice in event["choices"]]
    sound = b"".join(base64.b64decode(delta["audio"].get("data", "")) for delta in deltas if "audio" in delta)
    text = "".join(delta.get("content", "") for delta in deltas)
    return {"text": text, "audio": sound, "usage": events[-1]["usage"], "pieces": len(deltas)}


def test_200_streams_at_once_have_all_their_events_in_order(piecewise):
    asked = {"modalities": ["text", "audio"], "audio": {"format": "pcm16"}, "synthetic": {"frames": 16}}
    prompts = ["one two three", "eins zwei", "李明 说 你好 🙂"]

    async def stream(client: httpx.AsyncClient, number: int) -> dict[str, object]:
        body = {**asked, "messages": [{"role": "user", "content": prompts[number % 3]}], "seed": number % 3,
                "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
        assert lines[-1] == "[DONE]"
        return heard([json.loads(line) for line in lines[:-1]])

    async def all_of_them(url: str) -> list[dict[str, object]]:
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as client:
            return await asyncio.gather(*(stream(client, number) for number in range(200)))

    alone = [piecewise.chat(prompts[seed], seed=seed, **asked).json() for seed in range(3)]
    for number, found in enumerate(asyncio.run(all_of_them(piecewise.url))):
        message, usage = (alone[number % 3][key] for key in ("choices", "usage"))
        expected = message[0]["message"]
        assert found["text"] == expected["content"] == prompts[number % 3]
        assert found["audio"] == base64.b64decode(expected["audio"]["data"])
        assert found["usage"] == usage
        assert found["pieces"] > 3
