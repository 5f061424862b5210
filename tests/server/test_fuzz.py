"""Bytes at the socket that no client should send: broken HTTP, broken WebSocket frames, halves, slowly. It goes on.

What is sound HTTP and wrong otherwise is `test_openapi`'s, what is a sound frame `test_realtime`'s.
"""

import contextlib
import os
import random
import re
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.integration.cli import wait_for
from tests.server.serving import Server
from tests.server.test_load import call, gauges, size

EXAMPLES = 20_000 if os.environ.get("OMNI_SOAK") else 600
HANDSHAKE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
REQUEST = call(1, stream=True, modalities=["text"])


@st.composite
def broken_http(draw: st.DrawFn) -> bytes:
    """A request of which any part may be wrong, its framing above all."""
    short = st.binary(max_size=12)
    method = draw(st.sampled_from([b"POST", b"GET", b"HEAD", b"PRI", b"post", b""]) | short)
    targets = [b"/v1/chat/completions", b"/v1/models/%00%ff", b"*", b"http://a/health", b"/" * 9999]
    target = draw(st.sampled_from(targets) | short)
    version = draw(st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b""]))
    names = [b"Content-Length", b"Transfer-Encoding", b"Content-Type", b"Host", b"Expect", b"Connection", b"Upgrade"]
    values = [b"5", b"-1", b"0x5", b"5, 5", b"9" * 30, b"chunked", b"gzip, chunked", b"application/json", b"text/plain",
              b"100-continue", b"close", b"websocket", b"a\xff", b"x" * 70_000]  # fmt: skip
    headers = draw(st.lists(st.tuples(st.sampled_from(names) | short, st.sampled_from(values) | short), max_size=5))
    end = draw(st.sampled_from([b"\r\n", b"\n", b"\r"]))
    body = draw(st.sampled_from([b"", b"5\r\nhello\r\n0\r\n\r\n", b"-5\r\nx", b"fffffffffffffffff\r\n", b"{}", REQUEST])
                | st.binary(max_size=60))  # fmt: skip
    lines = [b" ".join((method, target, version)), *(name + b": " + value for name, value in headers)]
    return end.join([*lines, b"", body])


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A good request in which some bytes are others, cut anywhere."""
    data = bytearray(draw(st.sampled_from([REQUEST, HANDSHAKE])))
    for place, value in draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=5)):
        data[place] = value
    return bytes(data[: draw(st.integers(1, len(data)))])


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A good handshake, then frames of any kind, flags, mask and length, true or not."""
    sent = HANDSHAKE
    for _ in range(draw(st.integers(1, 6))):
        payload = draw(
            st.binary(max_size=40) | st.sampled_from([b'{"type":"response.create"}', b"\x03\xe8", b"[" * 200])
        )
        length = draw(st.just(len(payload)) | st.sampled_from([0, 125, 126, 127, 1 << 16, 1 << 62, (1 << 64) - 1]))
        flags = draw(st.sampled_from([0x80, 0x00, 0xC0, 0xF0]))
        mask = draw(st.sampled_from([0x80, 0x80, 0x00]))
        head = bytes([flags | draw(st.integers(0, 15))])
        if length < 126:
            head += bytes([mask | length])
        elif length < 1 << 16:
            head += bytes([mask | 126]) + struct.pack("!H", length)
        else:
            head += bytes([mask | 127]) + struct.pack("!Q", length)
        sent += head + (bytes(4) if mask else b"") + payload  # a mask of zeros leaves the payload as it is
    return sent


@contextlib.contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield client


def answer(client: socket.socket) -> bytes:
    """All that comes until the server closes."""
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(1 << 16):
            heard += data
    return heard


@pytest.mark.parametrize("kind", [broken_http(), spoilt(), frames(), st.binary(max_size=3000)], ids=str)
def test_no_bytes_hurt_the_server(server: Server, kind: st.SearchStrategy[bytes]):
    @seed(4)
    @settings(max_examples=EXAMPLES // 4, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(sent=kind)
    def send(sent: bytes) -> None:
        with connected(server) as client:
            try:
                client.sendall(sent[: len(sent) // 2])
                client.sendall(sent[len(sent) // 2 :])
                client.shutdown(socket.SHUT_WR)
            except TimeoutError:
                raise
            except OSError:
                pass  # it need not listen to the end
            heard = answer(client)
        assert not re.search(rb"HTTP/1\.1 5\d\d", heard), (sent, heard)

    send()
    wait_for(lambda: not any(gauges(server).values()), "an idle server")
    assert server.process.poll() is None
    assert server.chat().status_code == 200


def test_half_requests_and_slow_senders_hinder_nobody_and_leave_nothing(server: Server):
    drawn = random.Random(4)
    assert server.chat().status_code == 200
    before = size(server.process.pid)[1]
    with contextlib.ExitStack() as open_ones:
        started = []
        for number in range(200):
            client = open_ones.enter_context(connected(server))
            cut = drawn.randrange(len(REQUEST))
            client.sendall(REQUEST[:cut])
            started.append((number, client, cut))
        assert server.chat().status_code == 200
        for number, client, cut in started:
            if number % 2:
                for place in range(cut, len(REQUEST), 20):
                    client.sendall(REQUEST[place : place + 20])
                assert answer(client).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    wait_for(lambda: size(server.process.pid)[1] <= before, "an end of all connections")
    assert not any(gauges(server).values())
