"""POST /tokenize: the tokens that the first stage reads, of a text as it stands or of a conversation with its media."""

import base64
import json
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from stages.models.qwen3_omni.contract import CONTRACTS
from tests.server.serving import Server, refused
from tests.server.test_reports_media import PNG, WAV

TEXTS = ["hello there", "李明说：“你好”🙂", "<|im_start|>user\nhi<|im_end|>\n", " a  b\n\tc\0", "word " * 14_000]


def tokens(server: Server, **body: object) -> dict:
    done = httpx.post(f"{server.url}/tokenize", json=body, timeout=60)
    assert done.status_code == 200, done.text
    found = done.json()
    assert set(found) == {"tokens", "count", "max_model_len"}
    assert len(found["tokens"]) == found["count"]
    return found


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text)[:20])
def test_a_text_has_the_tokens_of_the_models_own_tokenizer(qwen, text):
    folder = Path(CONTRACTS["qwen3_omni"].embedded["tiny"]())
    config = json.loads((folder / "config.json").read_text())
    found = tokens(qwen, prompt=text, model="qwen3_omni")
    assert found["tokens"] == Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    assert found["max_model_len"] == config["thinker_config"]["text_config"]["max_position_embeddings"]


@pytest.mark.parametrize(
    "content",
    [
        "hello there",
        [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"}},
            {"type": "input_audio", "input_audio": {"data": base64.b64encode(WAV).decode(), "format": "wav"}},
        ],
    ],
    ids=["text", "media"],
)
def test_a_conversation_has_as_many_as_its_answer_says(qwen, content):
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": content}]
    answer = qwen.chat(messages=messages, modalities=["text"], max_tokens=1).json()
    assert tokens(qwen, messages=messages)["count"] == answer["usage"]["prompt_tokens"]


def test_the_synthetic_family_counts_what_it_will_say(server):
    for body in ({"prompt": "one two three"}, {"messages": [{"role": "user", "content": "one two three"}]}):
        found = tokens(server, **body)
        assert found["max_model_len"] is None
        answer = server.chat("one two three", modalities=["text"]).json()
        assert found["count"] == answer["usage"]["completion_tokens"] == len(set(found["tokens"]))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ({"prompt": " "}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"messages": []}, "messages"),
    ],
)
def test_anything_else_is_refused(server, body, param):
    assert refused(server, path="/tokenize", **body)["param"] == param


def test_more_than_can_be_told_is_refused_with_both_numbers(server):
    error = refused(server, path="/tokenize", prompt="word " * 300_000)
    assert "300001 tokens" in error["message"]
    assert "at most 262144" in error["message"]
