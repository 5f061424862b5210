"""The server over the tiny checkpoint of Qwen3-Omni: true token counts, sampling, and a prompt that is too long."""

import base64
import re

import httpx
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


CONTEXT = 8192


def test_r59_the_last_token_of_the_context_is_given_and_not_one_more(client, qwen):
    def counted(words: int) -> tuple[list[dict], int]:
        messages = [{"role": "user", "content": " the" * words}]
        return messages, httpx.post(f"{qwen.url}/tokenize", json={"messages": messages}).json()["count"]

    start = counted(10)[1]
    step = counted(11)[1] - start
    assert (CONTEXT - 1 - start) % step == 0
    messages, count = counted(10 + (CONTEXT - 1 - start) // step)
    assert count == CONTEXT - 1
    answer = client.chat.completions.create(
        model="qwen3_omni", messages=messages, modalities=["text"], max_tokens=100, logit_bias={"5": 100}
    )
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 1)
    messages[0]["content"] += " the"
    numbers = f"the prompt has {CONTEXT} tokens, the model's context is {CONTEXT}"
    with pytest.raises(openai.BadRequestError, match=numbers):
        client.chat.completions.create(model="qwen3_omni", messages=messages, modalities=["text"])


@pytest.mark.parametrize("parts", [1, 64])
def test_r59_five_megabytes_of_text_are_refused_by_their_beginning(client, qwen, parts):
    text = "word " * ((1 << 20) // parts)
    numbers = r"the first 131072 characters of the text have \d+ tokens, the model's context is 8192"
    content = [{"type": "text", "text": text}] * parts
    with pytest.raises(openai.BadRequestError, match=numbers):
        client.chat.completions.create(
            model="qwen3_omni", messages=[{"role": "user", "content": content}], modalities=["text"]
        )
    told = httpx.post(f"{qwen.url}/tokenize", json={"prompt": text * parts}, timeout=60).json()
    assert re.search(numbers, told["error"]["message"])


def test_what_openai_calls_sampling_is_followed(client):
    text = {**ASKED, "modalities": ["text"], "extra_body": {}}
    biased = client.chat.completions.create(**text, temperature=0, logit_bias={"5": 100})
    plain = client.chat.completions.create(**text, temperature=0)
    assert biased.choices[0].message.content != plain.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="no speaker 'nobody'"):
        client.chat.completions.create(**ASKED, audio={"voice": "nobody", "format": "wav"})
