"""The `openai` package drives the server, sync and async, streamed and whole, and both ways give the same answer."""

import asyncio
import base64
import io
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import openai
import pytest
import soundfile
from pydantic import BaseModel

from tests.integration.cli import omni, wait_for_event
from tests.server.serving import Server

TEXT = "hello 😀 李 world"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EXTENSIONS = {".seed"}  # what an answer has beyond OpenAI's fields

Call = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def call(server: Server, request: pytest.FixtureRequest) -> Call:
    """Calls a method of the sync or the async client by its name: `call("chat.completions.create", ...)`.

    What is streamed is read to its end: into a list, or into the one given as `into`. A response in a context manager
    gives its bytes.
    """
    options = {"base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0}

    def sync_call(name: str, *, into: list | None = None, **asked: object) -> Any:
        with openai.OpenAI(**options) as client:
            found = attrgetter(name)(client)(**asked)
            if hasattr(found, "__enter__") and not isinstance(found, openai.Stream):
                with found as response:
                    return list(response.iter_bytes())
            if not isinstance(found, openai.Stream):
                return found
            pieces = [] if into is None else into
            pieces.extend(found)
            return pieces

    async def async_call(name: str, *, into: list | None = None, **asked: object) -> Any:
        async with openai.AsyncOpenAI(**options) as client:
            found = attrgetter(name)(client)(**asked)
            if hasattr(found, "__aenter__"):
                async with found as response:
                    return [piece async for piece in response.iter_bytes()]
            found = await found
            if not isinstance(found, openai.AsyncStream):
                return found
            pieces = [] if into is None else into
            async for piece in found:
                pieces.append(piece)
            return pieces

    return sync_call if request.param == "sync" else lambda name, **asked: asyncio.run(async_call(name, **asked))


def asked(text: str = TEXT, **more: object) -> dict:
    return {"model": "synthetic", "messages": [{"role": "user", "content": text}], **more}


def untyped(answer: object, path: str = "") -> Iterator[str]:
    """The fields of an answer that the package has no type for."""
    if isinstance(answer, BaseModel):
        yield from {f"{path}.{name}" for name in answer.model_extra or {}} - EXTENSIONS
        for name in type(answer).model_fields:
            yield from untyped(getattr(answer, name), f"{path}.{name}")
    elif isinstance(answer, list):
        for item in answer:
            yield from untyped(item, f"{path}[]")


def samples(data: str) -> bytes:
    """Of a WAV file, or of a stream with one header, in base64: without the header, whose sizes differ."""
    return base64.b64decode(data)[44:]


def test_a_whole_answer_has_text_and_sound(call):
    answer = call("chat.completions.create", **asked(modalities=["text", "audio"], seed=5))
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == (TEXT, "stop")
    heard, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(choice.message.audio.data)))
    assert rate_hz == 24_000
    assert len(heard) == answer.usage.completion_tokens_details.audio_tokens * 1920
    assert choice.message.audio.transcript == TEXT
    assert choice.message.audio.expires_at > answer.created
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model_extra == {"seed": 5}
    assert list(untyped(answer)) == []


@pytest.mark.parametrize("form", [lambda message: message, lambda message: message.model_dump()], ids=["as is", "dump"])
def test_an_answer_is_a_turn_of_the_next_call(call, form):
    first = call("chat.completions.create", **asked())
    turns = [*asked()["messages"], form(first.choices[0].message), {"role": "user", "content": "and on"}]
    again = call("chat.completions.create", **{**asked(modalities=["text"]), "messages": turns}, tools=None)
    assert again.choices[0].message.content == "and on"


def test_r57_extra_body_is_the_same_as_the_field_itself(call):
    def heard(**more: object) -> str:
        return call("chat.completions.create", **asked(**more)).choices[0].message.audio.data

    assert heard(seed=5) == heard(extra_body={"seed": 5})
    assert len({heard(extra_body={"seed": value}) for value in (5, 6, None, None)}) == 4


def joined(chunks: list) -> tuple[dict[int, tuple[str, str, bytes]], list[str], object]:
    """Text, transcript and sound of each choice, the reasons and the usage of a stream."""
    found: dict[int, tuple[str, str, bytes]] = {}
    reasons, usage = [], None
    for chunk in chunks:
        assert list(untyped(chunk)) == []
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text, transcript, sound = found.get(choice.index, ("", "", b""))
            audio = choice.delta.audio
            found[choice.index] = (
                text + (choice.delta.content or ""),
                transcript + ((audio and audio.transcript) or ""),
                sound + base64.b64decode((audio and audio.data) or ""),
            )
            reasons += [choice.finish_reason] if choice.finish_reason else []
    return found, reasons, usage


@pytest.mark.parametrize("form", ["wav", "pcm16"])
def test_r38_r42_a_streamed_answer_is_the_whole_one(call, form):
    """The same modalities, the same text, samples and usage; no usage where none was asked for."""
    body = asked(audio={"voice": "default", "format": form}, seed=5)
    whole = call("chat.completions.create", **body)
    chunks = call("chat.completions.create", **body, stream=True, stream_options={"include_usage": True})
    found, reasons, usage = joined(chunks)
    text, transcript, sound = found[0]
    assert text == transcript == whole.choices[0].message.content
    data = base64.b64decode(whole.choices[0].message.audio.data)
    assert sound[44:] == data[44:] if form == "wav" else sound == data
    assert reasons == ["stop"]
    assert usage == whole.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert [(chunk.choices, chunk.usage) for chunk in chunks if chunk.usage] == [([], usage)]
    assert chunks[-1].usage
    assert len(data) > 24_000 * 2 * 0.2
    silent = call("chat.completions.create", **body, stream=True)
    assert joined(silent) == (found, reasons, None)


def test_several_choices_are_streamed_and_whole(call):
    whole = call("chat.completions.create", **asked(n=3, seed=5, modalities=["text", "audio"]))
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    found, reasons, _ = joined(call("chat.completions.create", **asked(n=3, seed=5, stream=True)))
    assert reasons == ["stop"] * 3
    assert {index: sound[44:] for index, (_, _, sound) in found.items()} == {
        choice.index: samples(choice.message.audio.data) for choice in whole.choices
    }


def test_completions_are_text(call):
    whole = call("completions.create", model="synthetic", prompt=TEXT)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (TEXT, "stop")
    usage = {"include_usage": True}
    pieces = call("completions.create", model="synthetic", prompt=TEXT, stream=True, stream_options=usage)
    assert "".join(choice.text for piece in pieces for choice in piece.choices) == TEXT
    assert pieces[-1].usage == whole.usage
    assert [*untyped(whole), *(name for piece in pieces for name in untyped(piece))] == []
    cut = call("completions.create", model="synthetic", prompt="a b c d", max_tokens=2)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 2)


def test_models_are_listed_and_found(call):
    listed, found = call("models.list"), call("models.retrieve", model="synthetic")
    assert [model.id for model in listed.data] == [found.id] == ["synthetic"]
    assert [*untyped(listed), *untyped(found)] == []


@pytest.mark.parametrize(
    ("form", "magic"), [("wav", b"RIFF"), ("flac", b"fLaC"), ("opus", b"OggS"), ("mp3", b"\xff"), ("pcm", b"")]
)
def test_r40_speech_has_the_format_that_was_asked_for(call, form, magic):
    data = call("audio.speech.create", model="synthetic", voice="default", input=TEXT, response_format=form).content
    assert data.startswith((magic, b"ID3"))
    assert len(data) > 500
    if form == "pcm":
        assert not data.startswith(b"RIFF")
        assert len(data) % (2 * 1920) == 0


@pytest.mark.parametrize("form", ["pcm", "wav"])
def test_r45_speech_that_is_read_as_it_comes_is_the_whole(call, form):
    body = {"model": "synthetic", "voice": "default", "input": TEXT, "response_format": form}
    whole = call("audio.speech.create", **body, extra_body={"seed": 5}).content
    pieces = call("audio.speech.with_streaming_response.create", **body, extra_body={"seed": 5, "stream": True})
    head = 44 if form == "wav" else 0
    assert b"".join(pieces)[head:] == whole[head:]
    streamed = call("audio.speech.with_streaming_response.create", **body, stream_format="sse")
    assert b"".join(streamed).count(b'"type":"speech.audio.done"') == 1


@pytest.mark.parametrize(
    ("error", "method", "more", "code", "param"),
    [
        (openai.NotFoundError, "chat.completions.create", {"model": "nope"}, "model_not_found", "model"),
        (openai.BadRequestError, "chat.completions.create", {"temperature": 9}, "invalid_value", "temperature"),
        (openai.NotFoundError, "images.generate", {"model": "nope"}, "model_not_found", "model"),
        (openai.BadRequestError, "images.generate", {"size": "0x0"}, "invalid_value", "size"),
        (openai.BadRequestError, "images.generate", {"n": 2, "extra_body": {"seed": 5}}, "not_supported", None),
        (openai.BadRequestError, "audio.speech.create", {"response_format": "xyz"}, "invalid_value", "response_format"),
        (openai.BadRequestError, "completions.create", {"echo": True}, "invalid_value", "echo"),
        (openai.NotFoundError, "models.retrieve", {"model": "nope"}, "model_not_found", "model"),
        (
            openai.InternalServerError,
            "chat.completions.create",
            {"extra_body": {"synthetic": {"fail": {"stage": "talker"}}}},
            "stage_failed",
            None,
        ),
    ],
)
def test_errors_are_typed(call, error, method, more, code, param):
    bodies = {
        "chat.completions.create": asked(),
        "images.generate": {"model": "synthetic", "prompt": "a cat"},
        "audio.speech.create": {"model": "synthetic", "voice": "default", "input": TEXT},
        "completions.create": {"model": "synthetic", "prompt": TEXT},
        "models.retrieve": {},
    }
    with pytest.raises(error) as raised:
        call(method, **{**bodies[method], **more})
    assert (raised.value.code, raised.value.param) == (code, param)
    named = {"stage_failed": "stage talker", "not_supported": "not supported by recipe synthetic"}
    assert named.get(code, "") in raised.value.message


def test_a_failure_after_the_200_is_an_error(call):
    fails = {"synthetic": {"fail": {"stage": "code2wav", "at": 3}}}
    chunks: list = []
    with pytest.raises(openai.APIError, match="stage code2wav"):
        call("chat.completions.create", into=chunks, **asked("one two three four", stream=True, extra_body=fails))
    assert chunks
    assert not [choice for chunk in chunks for choice in chunk.choices if choice.finish_reason]


def test_a_callers_trace_is_kept_with_the_request(call, server):
    answer = call("chat.completions.create", **asked(modalities=["text"]), extra_headers={"traceparent": TRACEPARENT})
    admitted = wait_for_event(server.run / "trace.jsonl", "request_admitted", request_id=f"{answer.id}-0")
    assert admitted["traceparent"] == TRACEPARENT
    shown = omni("trace", "show", str(server.run), "--request", f"{answer.id}-0", cwd=server.cwd)
    assert f"traceparent {TRACEPARENT}" in shown.out


def test_the_async_client_has_many_answers_at_once(server):
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            answers = await asyncio.gather(
                *(client.chat.completions.create(**asked(f"number {i}", modalities=["text"])) for i in range(10))
            )
            return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(ask()) == [f"number {i}" for i in range(10)]
