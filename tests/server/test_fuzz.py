"""Random bytes and random JSON at the server: it answers or hangs up, and goes on."""

import json
import random
import socket

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.serving import Server

REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 60\r\n\r\n"
    b'{"messages": [{"role": "user", "content": "hi"}], "seed": 1}'
)


def test_random_bytes_at_the_socket_hurt_nobody(server: Server):
    drawn = random.Random(4)
    for number in range(100):
        data = bytearray(REQUEST if number % 2 else drawn.randbytes(drawn.randrange(1, 3000)))
        if number % 2:
            for _ in range(drawn.randrange(1, 6)):
                data[drawn.randrange(len(data))] = drawn.randrange(256)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            try:
                answer = client.recv(4096)
            except ConnectionResetError:
                continue
            assert b" 500 " not in answer.partition(b"\r\n")[0], bytes(data)
    assert server.chat().status_code == 200
    assert server.process.poll() is None


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANY = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ("messages", "model", "modalities", "audio", "seed", "n", "stop", "sampling", "stream", "stream_options", "prompt",
     "input", "voice", "synthetic", "timeout_s", "logit_bias", "response_format", "stream_format", "speed"),
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    path=st.sampled_from(("/v1/chat/completions", "/v1/completions", "/v1/audio/speech", "/v1/images/generations")),
    body=st.dictionaries(FIELDS, ANY, max_size=4),
)
def test_random_values_in_known_fields_are_never_a_500(server: Server, path, body):
    done = httpx.post(
        f"{server.url}{path}", content=json.dumps(body), headers={"content-type": "application/json"}, timeout=60
    )
    assert done.status_code < 500, (body, done.text)
