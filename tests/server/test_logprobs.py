"""Log probabilities over HTTP: OpenAI's shapes, typed in its package, the same streamed and whole."""

import json
import math

import openai
import pytest

from omni_cli.runtime.request import OutputChunk
from omni_cli.server.logprobs import LEAST, TokenLogs, chat_logprobs, completion_logprobs
from stages.models.qwen3_omni.logprobs import TokenReport, log_payload
from tests.server.serving import Server

TEXT = {"model": "qwen3_omni", "seed": 5, "max_tokens": 12}
CHAT = {**TEXT, "messages": [{"role": "user", "content": "hello there"}], "modalities": ["text"]}


@pytest.fixture
def client(qwen: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{qwen.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("count", [None, 0, 3])
def test_chat_tells_each_token_streamed_as_whole(client, count):
    asked = {**CHAT, "logprobs": True, **({} if count is None else {"top_logprobs": count})}
    (choice,) = client.chat.completions.create(**asked).choices
    told = choice.logprobs.content
    assert b"".join(bytes(token.bytes) for token in told).decode(errors="replace") == choice.message.content
    assert len(told) == 12
    for token in told:
        assert token.token == bytes(token.bytes).decode(errors="replace")
        assert token.logprob <= 0
        assert len(token.top_logprobs) == (count or 0)
        likely = [other.logprob for other in token.top_logprobs]
        assert likely == sorted(likely, reverse=True)
        assert not token.model_extra
    assert not choice.logprobs.model_extra
    streamed = []
    for chunk in client.chat.completions.create(**asked, stream=True):
        for piece in chunk.choices:
            fresh = piece.logprobs.content if piece.logprobs is not None else []
            if piece.delta.content:  # in step: a piece of text comes with the tokens that it ends with
                assert piece.delta.content.encode()[-1:] == bytes(fresh[-1].bytes)[-1:]
            streamed += fresh
    assert streamed == told


@pytest.mark.parametrize("count", [0, 2])
def test_completions_tell_each_token_streamed_as_whole(client, count):
    asked = {**TEXT, "prompt": "hello there", "logprobs": count}
    (choice,) = client.completions.create(**asked).choices
    told = choice.logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset) == 12
    for token, logprob, likely in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert likely[token] >= logprob
        assert count <= len(likely) <= count + 1
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    joined: dict[str, list] = {name: [] for name in names}
    for chunk in client.completions.create(**asked, stream=True):
        for piece in chunk.choices:
            if piece.logprobs is not None:
                assert (piece.text, piece.logprobs.tokens) != ("", [])
                for name in names:
                    joined[name] += getattr(piece.logprobs, name)
    assert joined == {name: getattr(told, name) for name in names}


def test_nobody_who_has_not_asked_is_told(client):
    assert client.chat.completions.create(**CHAT).choices[0].logprobs is None
    assert client.completions.create(**TEXT, prompt="hello").choices[0].logprobs is None


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "modalities": ["audio"]}, "logprobs"),
        ({"logprobs": True, "extra_body": {"sampling": {"thinker": {"logprobs": 1}}}}, "sampling"),
        ({"extra_body": {"sampling": {"talker": {"logprobs": 1}}}}, "sampling.talker.logprobs"),
    ],
)
def test_what_cannot_be_told_is_refused(client, more, param):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{**CHAT, **more})
    assert refused.value.param == param


class Codec:
    def bytes_of(self, token: int) -> bytes:
        return {0: b"", 1: "a😀".encode()[:3], 2: "😀".encode()[2:] + b"b", 3: b"c"}[token]


def test_parts_of_a_character_and_minus_infinity_have_a_place_in_json():
    logs = TokenLogs()
    told = [TokenReport(token, -math.inf, ([0, token], [-0.5, -math.inf])) for token in (1, 2, 3, 0)]
    chunk = OutputChunk(modality="text", seq=0, units=4, eos=True, payload=log_payload(told, Codec(), 2))
    assert logs.take(chunk) == logs.all
    assert [offset for _, offset in logs.all] == [0, 1, 3, 4]
    chat, plain = chat_logprobs(logs.all), completion_logprobs(logs.all)
    json.dumps((chat, plain), allow_nan=False)
    assert plain["text_offset"] == [0, 1, 3, 4]
    assert plain["token_logprobs"] == [LEAST] * 4
    assert [entry["bytes"] for entry in chat["content"]] == [list(Codec().bytes_of(token)) for token in (1, 2, 3, 0)]
