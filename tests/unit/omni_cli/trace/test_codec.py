import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.runtime.events import RequestAdmitted, RunStarted
from omni_cli.trace.codec import EVENT_CLASSES, KINDS, SCHEMA, CodecError, decode, encode
from stages.events import InputReady, MessagePut, OutputProduced
from stages.messages import StreamMessage
from stages.payload import PayloadRef

READY = InputReady(uid=3, t_ns=17, prompt_tokens=0)


def without_bytes(event):
    """The event as a trace has it: payload bytes are not written."""
    if isinstance(event, OutputProduced) and event.ref is not None:
        return replace(event, ref=replace(event.ref, inline=None))
    if isinstance(event, MessagePut) and event.message.ref is not None:
        return replace(event, message=replace(event.message, ref=replace(event.message.ref, inline=None)))
    return event


def an_event(cls: type) -> st.SearchStrategy:
    st.register_type_strategy(int, st.integers(0, (1 << 63) - 1))
    if cls is RunStarted:
        return st.builds(RunStarted, schema=st.just(SCHEMA))
    return st.from_type(cls)


@pytest.mark.parametrize("cls", EVENT_CLASSES, ids=lambda cls: cls.__name__)
def test_every_event_comes_back_as_it_was(cls):
    @given(event=an_event(cls), source=st.text(), ordinal=st.integers(0, 1 << 40))
    def comes_back(event, source, ordinal):
        line = encode(source, ordinal, event)
        assert line.endswith("}\n")
        assert line.count("\n") == 1
        assert line.isascii()
        back = decode(line.encode())
        assert (back.source, back.ordinal) == (source, ordinal)
        assert repr(back.event) == repr(without_bytes(event))  # repr, since nan is not equal to itself

    comes_back()


def test_a_line_names_kind_source_ordinal_and_time_first():
    assert (
        encode("talker.0", 5, READY)
        == '{"kind":"input_ready","src":"talker.0","n":5,"t":17,"uid":3,"prompt_tokens":0}\n'
    )


def test_kinds_are_unique_snake_case():
    assert len(set(KINDS.values())) == len(EVENT_CLASSES) == 28
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", kind) for kind in KINDS.values())


def test_payload_bytes_are_not_written_but_counted():
    ref = PayloadRef(tensors=(), meta=(), nbytes=6, inline=b"secret")
    message = StreamMessage(uid=1, producer="a", consumer="b", seq=0, units=1, eos=True, ref=ref)
    line = encode("a.0", 0, MessagePut(uid=1, t_ns=1, message=message))
    assert "secret" not in line
    assert json.loads(line)["message"]["ref"]["nbytes"] == 6


def test_numbers_that_json_does_not_have_are_written_as_json():
    admitted = RequestAdmitted(
        t_ns=1, uid=1, request_id="a", seed=1, outputs=("text",), stages=("thinker",), timeout_s=math.inf
    )
    line = encode("omni", 0, admitted)
    assert json.loads(line, parse_constant=pytest.fail)["timeout_s"] == {"float": "inf"}
    assert decode(line).event == admitted


def test_text_that_is_no_unicode_comes_back():
    piece = OutputProduced(uid=1, t_ns=1, modality="text", seq=0, units=1, eos=False, text="\ud800 \x00 \u2028")
    assert decode(encode("a.0", 0, piece)).event == piece


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "input_redy"}, "no event is called 'input_redy'"),
        ({"kind": None}, "no event is called None"),
        ({"kind": []}, "no event is called"),
        ({"uid": "3"}, 'uid: expected int, got "3"'),
        ({"uid": True}, "uid: expected int, got true"),
        ({"uid": None}, "uid: expected int, got null"),
        ({"t": 1.5}, "t: expected int, got 1.5"),
        ({"t": -1}, "t: expected a time from 0 on, got -1"),
        ({"t": 1 << 63}, "t: expected int of 64 bits, got 9223372036854775808"),
        ({"uid": -1 - (1 << 63)}, "uid: expected int of 64 bits, got -92"),
        ({"n": 1 << 63}, "n: expected int of 64 bits"),
        ({"n": None}, "n: expected int"),
        ({"src": 4}, "src: expected str"),
        ({"extra": 1}, "extra is not known"),
        ({"uid": ...}, "uid is missing"),
        ({"t": ...}, "t is missing"),
    ],
)
def test_a_line_that_is_not_of_the_schema_is_refused_with_the_field(change, said):
    data = json.loads(encode("talker.0", 5, READY)) | change
    line = json.dumps({key: value for key, value in data.items() if value is not ...})
    with pytest.raises(CodecError, match=re.escape(said)):
        decode(line)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"kind":"input_ready"}{}', b"null"])
def test_what_is_no_object_is_refused(line):
    with pytest.raises(CodecError):
        decode(line)


def test_nested_fields_are_named_with_their_path():
    ref = PayloadRef(tensors=(), meta=(), nbytes=6)
    line = encode("a.0", 0, OutputProduced(uid=1, t_ns=1, modality="x", seq=0, units=1, eos=False, ref=ref))
    with pytest.raises(CodecError, match=r"ref\.nbytes: expected int, got null"):
        decode(line.replace('"nbytes":6', '"nbytes":null'))
    with pytest.raises(CodecError, match="reason: expected one of stop, length, empty"):
        decode(line.replace('"reason":null', '"reason":"bored"'))


def test_another_schema_version_is_refused_by_its_number():
    started = RunStarted(
        t_ns=1, schema=SCHEMA + 1, run_id="r", recipe="x", plan_digest="", stages=(), edges=(), outputs=(), wall_time=""
    )
    with pytest.raises(CodecError, match=f"version {SCHEMA + 1}, this omni reads version {SCHEMA}"):
        decode(encode("omni", 0, started))
