"""Reports of users about single requests, each as a test: what is asked for is done, or refused with a plain 4xx."""

import base64
import json
import socket
import time

import httpx
import pytest

from tests.server.serving import refused, says

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("asked", [["text"], ["audio"], ["text", "audio"], ["audio", "text"], None])
def test_r39_exactly_the_modalities_asked_for(server, asked):
    message = server.chat(**({"modalities": asked} if asked else {})).json()["choices"][0]["message"]
    wanted = set(asked or ("text", "audio"))
    assert ({"text"} if message["content"] else set()) | ({"audio"} if "audio" in message else set()) == wanted


@pytest.mark.parametrize("asked", [[], ["video"], "text", ["text", "text"], [5]])
def test_r39_other_modalities_are_refused(server, asked):
    assert refused(server, messages=MESSAGES, modalities=asked)["param"].startswith("modalities")


def test_r39_audio_settings_without_audio_are_refused(server):
    assert refused(server, messages=MESSAGES, modalities=["text"], audio={})["param"] == "audio"


@pytest.mark.parametrize(
    ("form", "magic"),
    [("wav", b"RIFF"), ("flac", b"fLaC"), ("opus", b"OggS"), ("mp3", (b"\xff", b"ID3")), ("pcm16", None)],
)
def test_r40_the_format_is_the_one_asked_for(server, form, magic):
    data = base64.b64decode(
        server.chat(audio={"voice": "default", "format": form}).json()["choices"][0]["message"]["audio"]["data"]
    )
    if form == "pcm16":
        assert len(data) % (2 * 1920) == 0
    elif magic:
        assert data.startswith(magic)
    assert form == "wav" or not data.startswith(b"RIFF")


def test_r40_an_unknown_format_is_refused_with_the_list(server):
    error = refused(server, messages=MESSAGES, audio={"voice": "default", "format": "xyz"})
    assert error["param"] == "audio.format"
    assert "wav, " in error["message"]


def test_r43_the_model_is_checked_on_every_route(server):
    for path, body in (
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/audio/speech", {"input": "hi", "voice": "default"}),
        ("/v1/images/generations", {"prompt": "hi"}),
        ("/tokenize", {"prompt": "hi"}),
    ):
        assert refused(server, 404, path, model="nope", **body)["code"] == "model_not_found"
    assert httpx.get(f"{server.url}/v1/models/nope").status_code == 404


@pytest.mark.parametrize("path", ["/v1/images/generations", "/v1/videos", "/v1/embeddings", "/detokenize"])
def test_r44_what_the_recipe_cannot_do_is_said(server, path):
    assert "not supported by recipe synthetic" in refused(server, path=path, prompt="a cat")["message"]
    assert httpx.get(f"{server.url}{path}").status_code == 405


def test_r45_speech_as_events_and_as_bytes(server):
    body = {"input": "hello there", "voice": "default", "response_format": "pcm", "seed": 3}
    speech = f"{server.url}/v1/audio/speech"
    whole = httpx.post(speech, json=body)
    chunked = httpx.post(speech, json={**body, "stream_format": "audio", "stream": True})
    assert chunked.headers["content-type"] == whole.headers["content-type"] == "audio/pcm"
    assert chunked.content == whole.content
    events = httpx.post(speech, json={**body, "stream_format": "sse"})
    assert events.headers["content-type"].startswith("text/event-stream")
    found = [json.loads(line.removeprefix("data: ")) for line in events.text.splitlines() if line]
    *deltas, done = found
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == whole.content
    assert done["type"] == "speech.audio.done"
    assert done["usage"]["output_tokens"] == len(whole.content) // (2 * 1920)
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + done["usage"]["output_tokens"]


def test_r48_the_stream_is_framed_for_a_line_reader(server):
    text = "😀李" * 5
    body = json.dumps({"messages": [{"role": "user", "content": text}], "stream": True, "seed": 1}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
        raw.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        answer = b"".join(iter(lambda: raw.recv(65_536), b""))
    headers, _, rest = answer.partition(b"\r\n\r\n")
    assert b"content-type: text/event-stream" in headers.lower()
    chunks = dechunked(rest)
    for chunk in chunks:
        chunk.decode("utf-8")  # no code point is split between two of them
    events = b"".join(chunks).decode("utf-8").split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    bodies = [json.loads(event.removeprefix("data: ")) for event in events]
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    assert bodies[0]["choices"][0]["delta"]["role"] == "assistant"
    assert len({(one["id"], one["created"], one["object"]) for one in bodies}) == 1
    assert "".join(one["choices"][0]["delta"].get("content") or "" for one in bodies) == text
    assert all("usage" not in one for one in bodies)


def dechunked(body: bytes) -> list[bytes]:
    found = []
    while body:
        size, _, body = body.partition(b"\r\n")
        found.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    return found[:-1]


@pytest.mark.parametrize(
    "messages",
    [
        *([{"role": "user", "content": content}] for content in ("", "   ", "\n", None, [], 5)),
        [{"role": "user", "content": [{"type": "text", "text": " "}]}],
        [{"role": "user"}],
        [],
        None,
    ],
    ids=str,
)  # fmt: skip
def test_r50_an_empty_prompt_is_refused(server, messages):
    before = server.took_on()
    assert refused(server, messages=messages)["param"].startswith("messages")
    assert refused(server, path="/v1/completions", prompt=" ")["param"] == "prompt"
    assert server.took_on() == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("seed", value) for value in (1 << 63, 1 << 64, -1, "", 1.5)),
        *(("temperature", value) for value in (-1, 1e9, "1")),
        *(("top_p", value) for value in (0, 1.1)),
        *(("n", value) for value in (0, -1, 1000)),
        *(("max_tokens", value) for value in (0, -1, 10**9)),
        ("timeout_s", 0),
        ("stop", "x"),
        ("logprobs", True),
        ("presence_penalty", 0.5),
        ("frequency_penalty", 3),
        ("logit_bias", {"5": 1}),
        ("tools", []),
    ],
    ids=lambda value: str(value)[:20],
)
def test_r51_what_is_out_of_range_or_unknown_is_refused_by_name(server, name, value):
    assert refused(server, messages=MESSAGES, **{name: value})["param"] == name


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_r51_no_number_is_no_temperature(server, number):
    text = json.dumps({"messages": MESSAGES})[:-1] + f', "temperature": {number}}}'
    done = httpx.post(f"{server.url}/v1/chat/completions", content=text, headers={"content-type": "application/json"})
    assert (done.status_code, done.json()["error"]["param"]) == (400, "temperature")


def test_r51_what_leaves_the_answer_as_it_is_may_stand_there(server):
    harmless = {
        "stop": None,
        "logprobs": False,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "logit_bias": {},
        "n": 1,
    }
    assert server.chat(**harmless).status_code == 200


SIZES = ("0x0", "-16x512", "100000x10000", "512", "512x", "x", 512, "１x１")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("size", value) for value in SIZES),
        *(("n", value) for value in (0, 11, 1.5, "1")),
        *(("prompt", value) for value in ("", " ", None, 5)),
        ("seed", -1),
        ("response_format", "gif"),
        ("output_format", "bmp"),
        ("output_compression", 101),
        ("quality", "best"),
        ("style", 1),
        ("background", "red"),
        ("stream", 1),
        ("partial_images", 4),
        ("timeout_s", 0),
    ],
    ids=ascii,
)
def test_r53_fields_of_an_image_are_checked_before_anything_else(server, field, value):
    asked = {"prompt": "a cat", field: value}
    assert refused(server, path="/v1/images/generations", **asked)["param"] == field


@pytest.mark.parametrize("size", ["512x512", "512x2048", "16x16", "auto", None])
def test_r53_a_size_that_is_one_comes_to_the_recipe(server, size):
    error = refused(server, path="/v1/images/generations", prompt="a cat", size=size, n=2, response_format="b64_json")
    assert error["code"] == "not_supported"


def test_r57_a_seed_gives_the_same_sound_and_null_is_absent(server):
    def heard(**body: object) -> str:
        return server.chat(**body).json()["choices"][0]["message"]["audio"]["data"]

    assert heard(seed=5) == heard(seed=5)
    assert len({heard(seed=5), heard(), heard(seed=None)}) == 3


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/audio/speech", {"input": "hi", "voice": "default"}),
        ("/v1/images/generations", {"prompt": "hi"}),
        ("/tokenize", {"prompt": "hi"}),
    ],
)
@pytest.mark.parametrize("field", ["sed", "max_token"])
def test_r58_an_unknown_field_is_refused_on_every_route(server, path, body, field):
    error = refused(server, path=path, **body, **{field: 5})
    assert (error["param"], error["code"]) == (field, "unknown_parameter")


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"", b'{"seed":1' + b"0" * 5000 + b"}", b"[]", b"5", b"null", b'"x"', b"[" * 100_000,
        b'{"a":' * 64 + b"1" + b"}" * 64, b"\xff\xfe{}",
        b'{"messages":[{"role":"user","content":"\\ud83d"}]}', b'{"model":"\\ud83d","messages":[]}',
        b'{"messages":[{"role":"user","content":5}]}', b'{"messages":[{"content":"x"}]}', b'{"\\ud83d":1}',
        b'{"messages":[{"role":"ghost","content":"x"}]}', b'{"messages":"x"}', b'{"messages":{}}', b"\0",
        b'{"messages":[{"role":"user","content":"x"}],"synthetic":{"frames":"many"}}',
        b'{"messages":[{"role":"user","content":"x"}],"synthetic":{"delay_ms":{"thinker":NaN}}}',
        b'{"messages":[{"role":"user","content":"x"}],"sampling":{"ghost":{"seed":1}}}',
        b'{"messages":[{"role":"user","content":"x"}],"audio":{"voice":"nobody"}}',
    ],
    ids=lambda body: repr(body[:40]),
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/audio/speech", "/tokenize"])
def test_r63_a_malformed_body_is_a_4xx(server, path, body):
    before = server.took_on()
    done = httpx.post(f"{server.url}{path}", content=body, headers={"content-type": "application/json"})
    assert 400 <= done.status_code < 500, done.text
    assert set(done.json()["error"]) == {"message", "type", "param", "code"}
    assert server.took_on() == before
    assert server.process.poll() is None


def test_r63_another_content_type_is_a_4xx(server):
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x"):
        done = httpx.post(f"{server.url}/v1/chat/completions", content=b"a=b", headers={"content-type": content_type})
        assert (done.status_code, done.json()["error"]["code"]) == (400, "invalid_content_type")


@pytest.mark.parametrize(
    ("content", "param", "why"),
    [
        ([], "messages[0].content", "has a length of 0, less than 1"),
        ([{"type": "file", "file": {}}], "messages[0].content[0]", "'input_audio'"),
        ([{"type": "text"}], "messages[0].content[0].text", "is missing"),
        ([{"type": "image_url", "image_url": {}}], "messages[0].content[0].image_url.url", "is missing"),
        (5, "messages[0].content", "should be text"),
    ],
)
def test_r63_the_part_that_is_wrong_is_named(server, content, param, why):
    error = refused(server, messages=[{"role": "user", "content": content}])
    assert error["param"] == param
    assert why in error["message"]


@pytest.mark.parametrize(
    "text",
    [
        "李明说：“你好”🙂🙂🏽",
        "مرحبا بالعالم",
        "👩‍👩‍👧‍👦",
        "e\u0301o\u0308",
        "🙂" * 10_000,
        "nul\0 in it",
        "${a} {{b}}",
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_r64_text_comes_back_code_point_by_code_point(server, text):
    assert says(server, {"type": "text", "text": text}) == text


def test_r64_an_emoji_alone_is_spoken(server):
    message = server.chat("🙂🙂🏽", audio={"format": "pcm16"}).json()["choices"][0]["message"]
    assert message["content"] == "🙂🙂🏽"
    assert 0 < len(base64.b64decode(message["audio"]["data"])) / 48_000 < 60


def test_r90_health_models_and_metrics_answer_get_and_head(server):
    for path in ("/health", "/health/live", "/health/ready", "/v1/models", "/metrics", "/version"):
        start = time.monotonic()
        assert httpx.get(f"{server.url}{path}").status_code == 200
        if path != "/version":
            assert httpx.head(f"{server.url}{path}").status_code == 200
        assert time.monotonic() - start < 2
