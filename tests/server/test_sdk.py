"""The `openai` package drives the server, sync and async, streamed and whole, and both ways give the same answer."""

import asyncio
import base64
import io

import openai
import pytest
import soundfile

from tests.server.serving import Server

TEXT = "hello 😀 李 world"


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def asked(text: str = TEXT, **more: object) -> dict:
    return {"model": "synthetic", "messages": [{"role": "user", "content": text}], **more}


def test_a_whole_answer_has_text_and_sound(client):
    answer = client.chat.completions.create(**asked(modalities=["text", "audio"], seed=5))
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == (TEXT, "stop")
    samples, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(choice.message.audio.data)))
    assert rate_hz == 24_000
    assert len(samples) == answer.usage.completion_tokens_details.audio_tokens * 1920
    assert choice.message.audio.transcript == TEXT
    assert choice.message.audio.expires_at > answer.created
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model_extra == {"seed": 5}
    assert not choice.model_extra
    assert not choice.message.model_extra


def streamed(client: openai.OpenAI, **more: object) -> tuple[str, str, bytes, list, object]:
    text, transcript, sound, reasons, usage = "", "", b"", [], None
    for chunk in client.chat.completions.create(**asked(stream=True, stream_options={"include_usage": True}, **more)):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            if choice.delta.audio is not None:
                transcript += choice.delta.audio.transcript or ""
                sound += base64.b64decode(choice.delta.audio.data or "")
            reasons += [choice.finish_reason] if choice.finish_reason else []
    return text, transcript, sound, reasons, usage


@pytest.mark.parametrize("form", ["wav", "pcm16"])
def test_a_streamed_answer_is_the_whole_one(client, form):
    """R38, R42: the same modalities, the same text, samples and usage."""
    audio = {"voice": "default", "format": form}
    whole = client.chat.completions.create(**asked(audio=audio, seed=5))
    text, transcript, sound, reasons, usage = streamed(client, audio=audio, seed=5)
    assert text == transcript == whole.choices[0].message.content
    data = base64.b64decode(whole.choices[0].message.audio.data)
    assert sound[44:] == data[44:] if form == "wav" else sound == data
    assert reasons == ["stop"]
    assert usage == whole.usage
    assert len(data) > 24_000 * 2 * 0.2


def test_several_choices_are_streamed_and_whole(client):
    whole = client.chat.completions.create(**asked(n=3, seed=5, modalities=["text", "audio"]))
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    found: dict[int, bytes] = {}
    for chunk in client.chat.completions.create(**asked(n=3, seed=5, stream=True)):
        for choice in chunk.choices:
            if choice.delta.audio is not None and choice.delta.audio.data:
                found[choice.index] = found.get(choice.index, b"") + base64.b64decode(choice.delta.audio.data)
    assert {index: data[44:] for index, data in found.items()} == {
        choice.index: base64.b64decode(choice.message.audio.data)[44:] for choice in whole.choices
    }


def test_completions_are_text(client):
    whole = client.completions.create(model="synthetic", prompt=TEXT)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (TEXT, "stop")
    pieces = list(
        client.completions.create(model="synthetic", prompt=TEXT, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(choice.text for piece in pieces for choice in piece.choices) == TEXT
    assert pieces[-1].usage == whole.usage
    cut = client.completions.create(model="synthetic", prompt="a b c d", max_tokens=2)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 2)


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["synthetic"]
    assert client.models.retrieve("synthetic").id == "synthetic"


@pytest.mark.parametrize(
    ("form", "magic"), [("wav", b"RIFF"), ("flac", b"fLaC"), ("opus", b"OggS"), ("mp3", b"\xff"), ("pcm", b"")]
)
def test_speech_has_the_format_that_was_asked_for(client, form, magic):
    data = client.audio.speech.create(model="synthetic", voice="default", input=TEXT, response_format=form).content
    assert data.startswith((magic, b"ID3"))
    assert len(data) > 500
    if form == "pcm":
        assert not data.startswith(b"RIFF")
        assert len(data) % (2 * 1920) == 0


def test_errors_are_typed(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**{**asked(), "model": "nope"})
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(**asked(temperature=9))
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="not supported by recipe synthetic"):
        client.images.generate(model="synthetic", prompt="a cat")
    with pytest.raises(openai.InternalServerError, match="stage talker"):
        client.chat.completions.create(**asked(extra_body={"synthetic": {"fail": {"stage": "talker"}}}))


def test_a_failure_after_the_200_is_an_error(client):
    fails = {"synthetic": {"fail": {"stage": "code2wav", "at": 3}}}
    reasons = []

    def read() -> None:
        for chunk in client.chat.completions.create(**asked("one two three four", stream=True, extra_body=fails)):
            reasons.extend(choice.finish_reason for choice in chunk.choices if choice.finish_reason)

    with pytest.raises(openai.APIError, match="stage code2wav"):
        read()
    assert reasons == []


def test_the_async_client_has_many_answers_at_once(server):
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            answers = await asyncio.gather(
                *(client.chat.completions.create(**asked(f"number {i}", modalities=["text"])) for i in range(10))
            )
            found = [answer.choices[0].message.content for answer in answers]
            pieces = [piece async for piece in await client.chat.completions.create(**asked(stream=True))]
            return [*found, "".join(c.delta.content or "" for piece in pieces for c in piece.choices)]

    assert asyncio.run(ask()) == [*(f"number {i}" for i in range(10)), TEXT]
