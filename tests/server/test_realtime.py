"""/v1/realtime as the `openai` package, a browser and clients of ill will use it."""

import asyncio
import base64
import json
import os
import random
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import websockets

from omni_cli.artifacts.audio import encode, to_pcm16
from omni_cli.artifacts.waveform import Waveform
from tests.integration.cli import leaves_nothing, wait_for
from tests.server.serving import Server, serving, since
from tests.server.test_reports_load import health, wait_until_idle
from tests.unit.omni_cli.inputs.media_samples import tone

TEXT = "hello 😀 李 world"
PATH = "/v1/realtime?model=synthetic"
LIMIT_S = 60
CANCEL_S = 0.2
"""What `response.cancel` may take to every stage; the test allows ten times as much on a busy machine."""


def turn(text: str) -> dict:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def creates(text: str, **fields: object) -> dict:
    return {"type": "conversation.item.create", "item": turn(text), **fields}


def responds(**settings: object) -> dict:
    return {"type": "response.create", "response": settings}


def sdk(server: Server, talk: Callable[[Any], Coroutine[Any, Any, None]], model: str = "synthetic") -> None:
    """Runs a conversation with the SDK's own realtime client."""

    async def run() -> None:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        async with asyncio.timeout(LIMIT_S), client, client.realtime.connect(model=model) as connection:
            assert (await connection.recv()).type == "session.created"
            await talk(connection)

    asyncio.run(run())


async def answer(connection: Any) -> tuple[str, bytes, Any]:
    """Text or transcript, pcm16 and the response, of events that are all known to the SDK."""
    text, sound = "", b""
    async for event in connection:
        assert not event.model_extra, event
        if event.type in ("response.output_text.delta", "response.output_audio_transcript.delta"):
            text += event.delta
        elif event.type == "response.output_audio.delta":
            sound += base64.b64decode(event.delta)
        elif event.type == "response.done":
            return text, sound, event.response
        assert event.type != "error", event
    raise AssertionError("the connection ended")


def test_the_sdk_has_several_turns_of_text_and_sound(server):
    """What a response says is what chat says, to the sample and the token."""
    chat = {"messages": [{"role": "user", "content": TEXT}], "audio": {"format": "pcm16"}, "stream": True, "seed": 5}
    pieces = httpx.post(f"{server.url}/v1/chat/completions", json=chat, timeout=LIMIT_S).text
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in pieces.split("\n") if line.startswith("data: {")]
    expected = b"".join(base64.b64decode(delta.get("audio", {}).get("data", "")) for delta in deltas)

    async def talk(connection: Any) -> None:
        await connection.conversation.item.create(item=turn(TEXT))
        await connection.response.create(response={"seed": 5})
        text, sound, done = await answer(connection)
        assert (text, done.status, done.output_modalities) == (TEXT, "completed", ["audio"])
        assert sound == expected
        assert len(sound) == 2 * 1920 * done.usage.output_token_details.audio_tokens > 0
        assert done.output[0].content[0].transcript == TEXT

        spoken = {"type": "audio/pcm", "rate": 16_000}
        await connection.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "audio": {"input": {"format": spoken}}}
        )
        tone = (8000 * np.sin(np.arange(16_000) / 20)).astype("<i2").tobytes()
        for at in range(0, len(tone), 6400):
            await connection.input_audio_buffer.append(audio=base64.b64encode(tone[at : at + 6400]).decode())
        await connection.input_audio_buffer.commit()
        await connection.response.create()
        text, sound, done = await answer(connection)
        assert (sound, done.status, done.output_modalities) == (b"", "completed", ["text"])
        assert text.startswith("[audio:")
        assert done.output[0].content[0].text == text

    sdk(server, talk)


def test_qwen3_omni_answers_to_all_that_was_said(qwen):
    """Heard and remembered: each turn's answer is chat's to the same conversation, and its prompt holds the turns."""
    limits = {"seed": 5, "sampling": {"talker": {"max_tokens": 12}}}
    pcm = to_pcm16(tone(0.5, 24_000).astype(np.float32)).tobytes()
    wav = encode(Waveform(samples=np.frombuffer(pcm, "<i2") / np.float32(32768), rate_hz=24_000)).data
    heard = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav).decode(), "format": "wav"}}
    messages: list[dict] = [{"role": "user", "content": [heard]}]

    def expected() -> tuple[str, bytes, int]:
        body = {"messages": messages, "max_tokens": 8, "audio": {"voice": "default", "format": "pcm16"}, **limits}
        done = httpx.post(f"{qwen.url}/v1/chat/completions", json=body, timeout=LIMIT_S).json()
        said = done["choices"][0]["message"]
        return said["content"], base64.b64decode(said["audio"]["data"]), done["usage"]["prompt_tokens"]

    async def talk(connection: Any) -> None:
        await connection.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())
        await connection.input_audio_buffer.commit()
        await connection.response.create(response={"max_output_tokens": 8, **limits})
        text, sound, done = await answer(connection)
        assert (text, sound, done.usage.input_tokens) == await asyncio.to_thread(expected)
        messages.extend(({"role": "assistant", "content": text}, {"role": "user", "content": "and now?"}))
        await connection.conversation.item.create(item=turn("and now?"))
        await connection.response.create(response={"max_output_tokens": 8, **limits})
        first = done.usage.input_tokens
        text, sound, done = await answer(connection)
        assert (text, sound, done.usage.input_tokens) == await asyncio.to_thread(expected)
        assert done.usage.input_tokens > first + 8

    sdk(qwen, talk, "qwen3_omni")


def test_cancel_reaches_every_stage_at_once(piecewise):
    slow = {"delay_ms": {"thinker": 20, "talker": 5, "code2wav": 5}}
    sent_ns = 0

    async def talk(connection: Any) -> None:
        nonlocal sent_ns
        await connection.conversation.item.create(item=turn("word " * 400))
        await connection.response.create(response={"synthetic": slow})
        async for event in connection:
            if event.type == "response.output_audio.delta":
                break
        sent_ns = time.monotonic_ns()
        await connection.response.cancel()
        _, _, done = await answer(connection)
        assert (done.status, done.status_details.reason) == ("cancelled", "client_cancelled")
        assert done.output[0].status == "incomplete"
        assert 0 < done.usage.output_token_details.text_tokens < 400
        await connection.conversation.item.create(item=turn("again"))
        await connection.response.create(response={"output_modalities": ["text"]})
        assert (await answer(connection))[0] == "again"

    sdk(piecewise, talk)
    since(piecewise, sent_ns, "stage_cancelling", "thinker", "talker", "code2wav")
    took_s = since(piecewise, sent_ns, "stage_cancelled", "thinker.0", "talker.0", "code2wav.0")
    print(f"from response.cancel to the end in each stage, s: {took_s}")
    assert max(took_s.values()) < 10 * CANCEL_S


def connected(url: str, talk: Callable[[Any], Coroutine[Any, Any, None]], **options: Any) -> None:
    """The same over a bare WebSocket."""

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S), websockets.connect(url, **options) as socket:
            await talk(socket)

    asyncio.run(run())


def url(server: Server) -> str:
    return f"ws://127.0.0.1:{server.port}{PATH}"


async def until(socket: Any, *kinds: str) -> dict:
    while True:
        event = json.loads(await socket.recv())
        if event["type"] in kinds:
            return event


@pytest.mark.parametrize("politely", [True, False])
def test_a_client_that_leaves_frees_every_stage(piecewise, politely):
    left_ns = 0

    async def talk(socket: Any) -> None:
        nonlocal left_ns
        await socket.send(json.dumps(creates("one two three")))
        await socket.send(json.dumps(responds(synthetic={"never_end": True})))
        await until(socket, "response.output_audio.delta")
        left_ns = time.monotonic_ns()
        if not politely:
            socket.transport.abort()

    connected(url(piecewise), talk)
    since(piecewise, left_ns, "stage_cancelled", "talker.0", "code2wav.0")  # the thinker may have finished before
    wait_until_idle(piecewise)


def test_r15_sessions_that_are_killed_leave_nothing(piecewise):
    seeded = random.Random(15)
    few = asyncio.Semaphore(10)

    async def killed() -> None:
        async with few, websockets.connect(url(piecewise)) as socket:
            await socket.send(json.dumps(creates("one two three")))
            await socket.send(json.dumps(responds(synthetic={"frames": 30, "delay_ms": {"talker": 1}})))
            for _ in range(seeded.randrange(14)):
                await socket.recv()
            socket.transport.abort()

    async def all_of_them() -> None:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(killed() for _ in range(100)))

    def connections() -> int:
        return len(os.listdir(f"/proc/{piecewise.process.pid}/fd"))

    wait_until_idle(piecewise)
    before, lines = connections(), len(piecewise.lines)
    asyncio.run(all_of_them())
    wait_until_idle(piecewise)
    wait_for(lambda: connections() <= before + 2, "the end of all connections")
    assert piecewise.chat().status_code == 200
    assert len(piecewise.lines) < lines + 2 * 100


def test_one_that_does_not_read_is_dropped_and_nobody_else_notices(piecewise):
    async def talk(socket: Any) -> None:
        socket.transport.pause_reading()
        await socket.send(json.dumps(creates("one two three")))
        await socket.send(json.dumps(responds(synthetic={"frames": 5000})))
        await asyncio.to_thread(since, piecewise, begun_ns, "request_cancelled", "omni")
        assert (await asyncio.to_thread(piecewise.chat)).status_code == 200
        socket.transport.abort()

    begun_ns = time.monotonic_ns()
    connected(url(piecewise), talk)
    assert "the client is dropped" in piecewise.log
    wait_until_idle(piecewise)


def test_r19_a_drain_lets_what_is_in_flight_finish_and_takes_no_other(tmp_path):
    async def talk(socket: Any) -> None:
        async with websockets.connect(url(server)) as other:
            await socket.send(json.dumps(creates("one")))
            slow = {"synthetic": {"delay_ms": {"thinker": 3000}}}  # all that follows has to happen meanwhile
            await socket.send(json.dumps(responds(output_modalities=["text"], **slow)))
            chat = asyncio.create_task(asyncio.to_thread(server.chat, "one", modalities=["text"], **slow))
            await asyncio.to_thread(wait_for, lambda: health(server)["running"] == 2, "both")
            server.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(wait_for, lambda: health(server)["status"] == "draining", "the drain")
            await other.send(json.dumps(creates("two")))
            await other.send(json.dumps({**responds(), "event_id": "late"}))
            refused = await until(other, "error")
            assert (refused["error"]["code"], refused["error"]["event_id"]) == ("draining", "late")
            assert (await until(socket, "response.done"))["response"]["status"] == "completed"
            assert (await chat).status_code == 200
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await until(socket, "nothing")
            assert closed.value.rcvd.code == 1012

    with leaves_nothing(), serving(cwd=tmp_path) as server:
        connected(url(server), talk)
        assert server.ended() == 143


def test_no_frame_hurts_the_server_or_another_session(server):
    """Random text, JSON of known words, and bytes: every one is answered, the connection lives, and another's too."""
    seeded = random.Random(4)
    words = ["type", "response.create", "session.update", "session", "audio", "item", "event_id", "\ud800", "", "role"]

    def value(depth: int = 0) -> object:
        kind = seeded.randrange(9 if depth < 3 else 6)
        if kind < 6:
            return seeded.choice([None, True, -1, 1e300, 2**70, seeded.choice(words)])
        if kind == 6:
            return [value(depth + 1) for _ in range(seeded.randrange(4))]
        return {seeded.choice(words): value(depth + 1) for _ in range(seeded.randrange(5))}

    def frame() -> str | bytes:
        match seeded.randrange(4):
            case 0:
                return seeded.randbytes(seeded.randrange(40))
            case 1:
                return "".join(chr(seeded.randrange(1, 0x2000)) for _ in range(seeded.randrange(40)))
            case 2:
                return json.dumps(value())
        kind = seeded.choice(["session.update", "response.create", "conversation.item.create", "response.cancel"])
        return json.dumps({"type": kind, seeded.choice(["session", "response", "item"]): value()})

    async def talk(socket: Any) -> None:
        await until(socket, "session.created")
        for data in [*(frame() for _ in range(400)), "[" * 100_000, '{"a":' * 100_000]:
            await socket.send(data)
            event = await until(socket, "error", "session.updated")
            assert event["type"] == "session.updated" or event["error"]["code"] != "internal_error", (data, event)
        await socket.send(json.dumps(creates("still here")))
        await socket.send(json.dumps(responds(output_modalities=["text"])))
        assert (await until(socket, "response.done"))["response"]["status"] == "completed"

    connected(url(server), talk)
    wait_until_idle(server)


def test_an_event_beyond_the_limit_and_a_broken_frame_close_the_connection(piecewise):
    async def too_large(socket: Any) -> None:
        await socket.send(" " * 5000)
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await until(socket, "nothing")
        assert closed.value.rcvd.code == 1009

    async def broken(socket: Any) -> None:
        socket.transport.write(b"\xff\xff\xff\xff")
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await until(socket, "nothing")
        assert closed.value.rcvd.code == 1002

    connected(url(piecewise), too_large)
    connected(url(piecewise), broken)
    assert piecewise.chat().status_code == 200


def test_a_stage_that_fails_and_a_deadline_are_told_twice_once_as_an_error(server):
    async def talk(socket: Any) -> None:
        await socket.send(json.dumps(creates("one two")))
        for settings, code in (
            ({"synthetic": {"fail": {"stage": "talker"}}}, "stage_failed"),
            ({"synthetic": {"never_end": True}, "timeout_s": 0.5}, "timeout"),
        ):
            await socket.send(json.dumps({**responds(**settings), "event_id": "this"}))
            error = (await until(socket, "error"))["error"]
            assert (error["code"], error["event_id"], "stage talker" in error["message"]) == (code, "this", True)
            done = (await until(socket, "response.done"))["response"]
            assert (done["status"], done["status_details"]["error"]["code"]) == ("failed", code)
        await socket.send(json.dumps(responds(max_output_tokens=1)))
        done = (await until(socket, "response.done"))["response"]
        assert (done["status"], done["status_details"]["reason"]) == ("incomplete", "max_output_tokens")

    connected(url(server), talk)
