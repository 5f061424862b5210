"""The server over the tiny checkpoint of Qwen3-Omni: true token counts, sampling, and a prompt that is too long."""

import base64
import re

import openai
import pytest

from tests.server.serving import Server

ASKED = {
    "model": "qwen3_omni",
    "messages": [{"role": "user", "content": "hello there"}],
    "seed": 5,
    "max_tokens": 8,
    "extra_body": {"sampling": {"talker": {"max_tokens": 12}}},
}


@pytest.fixture
def client(qwen: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{qwen.url}/v1", api_key="none", max_retries=0)


def test_streamed_and_whole_answers_are_equal(client):
    whole = client.chat.completions.create(**ASKED)
    text, sound, usage, reasons = "", b"", None, []
    for chunk in client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            sound += base64.b64decode((choice.delta.audio and choice.delta.audio.data) or "")
            reasons += [choice.finish_reason] if choice.finish_reason else []
    message = whole.choices[0].message
    assert (text, usage, reasons) == (message.content, whole.usage, [whole.choices[0].finish_reason])
    assert sound[44:] == base64.b64decode(message.audio.data)[44:]
    assert usage.prompt_tokens > 5
    assert usage.completion_tokens_details.text_tokens == 8


def test_r59_a_prompt_longer_than_the_context_is_refused_with_both_numbers(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="qwen3_omni", messages=[{"role": "user", "content": "word " * 100_000}], modalities=["text"]
        )
    assert len(re.findall(r"\d+", refused.value.message.partition("-")[2])) >= 2


def test_what_openai_calls_sampling_is_followed(client):
    text = {**ASKED, "modalities": ["text"], "extra_body": {}}
    biased = client.chat.completions.create(**text, temperature=0, logit_bias={"5": 100})
    plain = client.chat.completions.create(**text, temperature=0)
    assert biased.choices[0].message.content != plain.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="no speaker 'nobody'"):
        client.chat.completions.create(**ASKED, audio={"voice": "nobody", "format": "wav"})
