import base64
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import soundfile
from PIL import Image

from omni_cli.errors import InputError
from omni_cli.inputs.conversation import from_messages, from_prompt


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "a picture.png"
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(path)
    return str(path)


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.linspace(-0.5, 0.5, 160, dtype=np.float32), 16_000, subtype="FLOAT")
    return str(path)


def test_media_come_before_the_text_and_keep_their_samples(picture, recording):
    talk = from_prompt("what?", images=[picture], audios=[recording])
    (message,) = talk.messages
    assert [part.kind for part in message.parts] == ["image", "audio", "text"]
    image, audio = talk.media.tensors
    assert (image.name, image.dtype, image.shape) == (message.parts[0].media, "uint8", (4, 4, 3))
    assert bytes(image.data) == bytes(range(48))
    np.testing.assert_array_equal(np.frombuffer(audio.data, np.float32), np.linspace(-0.5, 0.5, 160, dtype=np.float32))
    assert talk.kinds == {"image", "audio"}
    assert [len(fact.sha256) for fact in talk.facts] == [64, 64]


@pytest.mark.parametrize("text", ["", "   ", "\n", None])
def test_a_blank_prompt_is_refused_unless_a_medium_says_something(text, picture):
    with pytest.raises(InputError, match="prompt"):
        from_prompt(text)
    assert from_prompt(text, images=[picture]).kinds == {"image"}


@pytest.mark.parametrize("text", ["a=b, 'c' ${x} ??? #!", "李明说：“你好”🙂", " outer blanks ", "null", "1e3", "a\\"])
def test_text_passes_code_point_by_code_point(text):
    assert from_prompt(text).messages[0].parts[0].text == text


def test_several_turns(picture):
    talk = from_messages(
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "what?"}]},
            {"role": "assistant", "content": "a square"},
            {"role": "user", "content": "which colour?"},
        ]
    )
    assert [message.role for message in talk.messages] == ["system", "user", "assistant", "user"]
    assert len(talk.media.tensors) == 1


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([], "messages"),
        ({}, "messages"),
        ([5], r"messages\[0\]"),
        ([{"role": "user"}], r"messages\[0\].content"),
        ([{"role": "user", "content": []}], r"messages\[0\].content"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content"),
        ([{"role": "robot", "content": "x"}], r"messages\[0\].role"),
        ([{"role": "user", "content": "x", "nme": 1}], r"messages\[0\].nme"),
        ([{"role": "user", "content": [{"type": "smell"}]}], r"messages\[0\].content\[0\].type"),
        ([{"role": "user", "content": [{"type": "image", "image": {"url": "x"}}]}], r"content\[0\].image"),
        ([{"role": "user", "content": [{"type": "text", "txt": "x"}]}], r"content\[0\].txt"),
        ([{"role": "system", "content": "only a system turn"}], "messages"),
        ([{"role": "user", "content": "\ud83d"}], "surrogate"),
    ],
)
def test_what_is_wrong_in_messages_is_named(messages, where):
    with pytest.raises(InputError, match=where) as refused:
        from_messages(messages)
    assert refused.value.exit_code == 2


def test_a_missing_file_is_named_by_index_and_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=rf"messages\[0\].content\[0\].*{tmp_path}/no.png"):
        from_messages([{"role": "user", "content": [{"type": "image", "image": "no.png"}]}])


@pytest.mark.parametrize("head", ["data:image/png;base64,", "data:;base64,", "DATA:text/plain;charset=utf-8;BASE64,"])
@pytest.mark.parametrize(
    "written",
    [str, lambda data: data.rstrip("="), lambda data: "\n".join((data[:9], data[9:])), quote],
    ids=["padded", "bare", "lines", "percent"],
)
def test_a_medium_may_stand_in_the_request_itself(tmp_path, picture, head, written):
    url = head + written(base64.urlsafe_b64encode(Path(picture).read_bytes()).decode())
    (inside,) = from_prompt("what?", images=[url]).media.tensors
    (outside,) = from_prompt("what?", images=[picture]).media.tensors
    assert (inside.shape, bytes(inside.data)) == (outside.shape, bytes(outside.data))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("data:image/png,abc", "image: a data URL has to be data:TYPE;base64,DATA"),
        ("data:image/png;base64,ab*c", "image: does not hold base64"),
        ("data:image/png;base64,", "image: does not hold base64"),
        ("data:image/png;base64,aGVsbG8=", "image: holds plain text, not an image"),
    ],
)
def test_a_data_url_that_is_none_is_refused(url, said):
    with pytest.raises(InputError, match=said) as refused:
        from_prompt("what?", images=[url])
    assert refused.value.param == "image"
