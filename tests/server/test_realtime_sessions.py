"""Sessions of /v1/realtime, in this process and without stages: turns, refusals, who is let in."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient, WebSocketDenialResponse

from omni_cli.runtime.request import OmniRequest, OutputChunk
from tests.integration.cli import wait_for
from tests.server.test_doors import EchoEngine, app
from tests.server.test_realtime import PATH, creates, responds, turn
from tests.unit.omni_cli.inputs.media_samples import picture


class Remembering(EchoEngine):
    """Keeps what it was asked, and answers only when told to, if `held`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[OmniRequest] = []
        self.left = 0
        self.held = False

    async def generate(self, request: OmniRequest) -> AsyncGenerator[OutputChunk, None]:
        self.asked.append(request)
        try:
            if self.held:
                await asyncio.Event().wait()
            async with contextlib.aclosing(super().generate(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.left += 1


@contextlib.contextmanager
def session(*words: str, held: bool = False, keys: tuple[str, ...] = (), **options: Any) -> Any:
    application = app(*words, keys=keys)
    application.state.service.engine = engine = Remembering()
    engine.held = held
    with TestClient(application) as client, client.websocket_connect(PATH, **options) as socket:
        assert socket.receive_json()["type"] == "session.created"
        yield Wire(socket, engine)
        leave(application, socket)


def leave(application: Any, *sockets: Any) -> None:
    """The client for tests cancels what is still at work when it leaves; a real server does not."""
    for socket in sockets:
        socket.close()
    wait_for(lambda: not application.state.service.sessions, "the end of the sessions")


class Wire:
    def __init__(self, socket: Any, engine: Remembering) -> None:
        self.socket, self.engine = socket, engine

    def say(self, event: dict, *kinds: str) -> dict:
        """Sends, and returns the first event of one of the kinds."""
        self.socket.send_json(event)
        return self.hear(*kinds)

    def hear(self, *kinds: str) -> dict:
        while True:
            event = self.socket.receive_json()
            if event["type"] in kinds:
                return event

    def ask(self, **settings: object) -> dict:
        return self.say(responds(output_modalities=["text"], **settings), "response.done", "error")


def conversation(request: OmniRequest) -> list[tuple[str, str]]:
    return [(m.role, " ".join(part.text or part.kind for part in m.parts)) for m in request.conversation]


def test_turns_are_kept_placed_and_deleted():
    with session() as wire:
        wire.say(creates("one"), "conversation.item.done")
        assert wire.ask()["response"]["output"][0]["content"] == [{"type": "output_text", "text": "one"}]
        image = base64.b64encode(picture(Image.new("RGB", (8, 8)))).decode()
        shown = {"type": "input_image", "image_url": f"data:image/png;base64,{image}"}
        item = {**turn("two"), "id": "mine", "content": [shown, *turn("two")["content"]]}
        added = wire.say({"type": "conversation.item.create", "item": item}, "conversation.item.added")
        assert (added["item"]["id"], added["item"]["content"][0]) == ("mine", {"type": "input_image"})
        wire.ask(instructions="be brief")
        wire.say(creates("zero", previous_item_id="root"), "conversation.item.done")
        wire.say({"type": "conversation.item.delete", "item_id": "mine"}, "conversation.item.deleted")
        wire.ask(conversation="none")
        wire.ask(input=[turn("alone")], conversation="none")
        wire.ask()
        first, second, third, alone, last = map(conversation, wire.engine.asked)
    assert first == [("user", "one")]
    assert second == [("system", "be brief"), ("user", "one"), ("assistant", "one"), ("user", "image two")]
    assert third == [("user", "zero"), ("user", "one"), ("assistant", "one"), ("assistant", "two")]
    assert alone == [("user", "alone")]
    assert last == third


def test_a_conversation_has_the_limit_of_a_body():
    with session("serve.max_body_bytes=64000", "serve.max_audio_s=1.0") as wire:
        wire.say(creates("x" * 40_000), "conversation.item.done")
        refused = wire.say({**creates("y" * 40_000), "event_id": "more"}, "error")["error"]
        assert (refused["code"], refused["event_id"]) == ("conversation_too_large", "more")
        second = base64.b64encode(bytes(2 * 24_000)).decode()
        append = {"type": "input_audio_buffer.append", "audio": second}
        wire.socket.send_json(append)
        assert "larger than 48000 bytes" in wire.say(append, "error")["error"]["message"]


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ({}, "invalid_value", None),
        ({"type": "conversation.item.truncate"}, "invalid_value", None),
        ({"type": "response.create", "modalities": ["text"]}, "unknown_parameter", "modalities"),
        ({"type": "session.update", "session": {"voice": "x"}}, "unknown_parameter", "session.voice"),
        (
            {"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}},
            "invalid_value",
            "session.audio.input.turn_detection",
        ),
        ({"type": "session.update", "session": {"model": "other"}}, "model_not_found", "model"),
        ({"type": "input_audio_buffer.append", "audio": "%%"}, "invalid_value", "audio"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "invalid_value", "audio"),
        ({"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty", None),
        ({"type": "conversation.item.delete", "item_id": "none"}, "item_not_found", "item_id"),
        ({"type": "response.cancel"}, "response_cancel_not_active", None),
        ({"type": "response.create"}, "invalid_value", None),
        (responds(input=[turn("hi")], synthetic={"nope": 1}), "invalid_value", "synthetic.nope"),
        (responds(input=[turn("hi")], timeout_s=601), "invalid_value", "timeout_s"),
        (
            {
                "type": "conversation.item.create",
                "item": {**turn("x"), "content": [{"type": "input_image", "image_url": "data:;base64,QUJD"}]},
            },
            "invalid_value",
            "messages[0].content[0]",
        ),
    ],
)
def test_a_refusal_names_the_event_and_the_session_goes_on(event, code, param):
    with session() as wire:
        refused = wire.say({**event, "event_id": "this"}, "error")["error"]
        assert (refused["code"], refused["event_id"]) == (code, "this")
        assert refused["param"] == param
        wire.say(creates("hi"), "conversation.item.done")
        assert wire.ask()["response"]["status"] == "completed"


def test_what_nobody_expected_is_told_without_details_and_logged(caplog):
    with session() as wire:
        wire.engine.error = KeyError("a secret")
        wire.say(creates("hi"), "conversation.item.done")
        refused = wire.say(responds(output_modalities=["text"]), "error")["error"]
        assert (refused["code"], "secret" in refused["message"]) == ("internal_error", False)
        assert wire.hear("response.done")["response"]["status"] == "failed"
        assert "KeyError: 'a secret'" in caplog.text


def test_one_response_at_a_time_and_a_cancelled_one_is_over_for_the_engine():
    with session(held=True) as wire:
        wire.say(creates("hi"), "conversation.item.done")
        created = wire.say(responds(output_modalities=["text"]), "response.created")["response"]
        second = wire.say(responds(), "error")["error"]
        assert second["code"] == "conversation_already_has_active_response"
        other = wire.say({"type": "response.cancel", "response_id": "other"}, "error")["error"]
        assert other["code"] == "response_cancel_not_active"
        done = wire.say({"type": "response.cancel", "response_id": created["id"]}, "response.done")["response"]
        assert (done["id"], done["status"], wire.engine.left) == (created["id"], "cancelled", 1)


def test_who_waits_at_the_door_can_cancel_and_one_too_many_is_refused():
    application = app()
    service = application.state.service
    service.engine = engine = Remembering()
    engine.held = True
    with TestClient(application) as client, contextlib.ExitStack() as open_:
        wires = [Wire(open_.enter_context(client.websocket_connect(PATH)), engine) for _ in range(8)]
        for wire in wires:
            wire.say(creates("hi"), "conversation.item.done")
            wire.socket.send_json(responds(output_modalities=["text"]))
        wait_for(lambda: (service.admission.running, service.admission.waiting) == (4, 4), "a full house")
        with pytest.raises(WebSocketDenialResponse) as full, client.websocket_connect(PATH):
            pass
        assert full.value.status_code == 429
        refused = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
        assert refused.status_code == 429
        done = wires[-1].say({"type": "response.cancel"}, "response.done")["response"]
        assert (done["status"], len(engine.asked), service.admission.waiting) == ("cancelled", 4, 3)
        for wire in wires[:-1]:
            wire.say({"type": "response.cancel"}, "response.done")
        leave(application, *(wire.socket for wire in wires))
    assert (service.sessions, service.admission.running) == (0, 0)


def denied(path: str = PATH, *words: str, keys: tuple[str, ...] = (), **options: Any) -> int:
    with (
        TestClient(app(*words, keys=keys)) as client,
        pytest.raises(WebSocketDenialResponse) as denial,
        client.websocket_connect(path, **options),
    ):
        pass
    return denial.value.status_code


def test_the_handshake_needs_a_key_the_model_and_a_page_of_this_origin():
    browser = ["realtime", "openai-insecure-api-key.secret"]
    assert denied(keys=("secret",)) == 401
    assert denied(keys=("secret",), subprotocols=["realtime", "openai-insecure-api-key.wrong"]) == 401
    assert denied("/v1/realtime?model=other") == 404
    assert denied(headers={"Origin": "https://other.example"}) == 403
    assert denied(PATH, "serve.cors_origins=[https://page.example]", headers={"Origin": "https://evil.example"}) == 403
    with session(keys=("secret",), subprotocols=browser, headers={"Origin": "http://testserver"}) as wire:
        assert wire.socket.accepted_subprotocol == "realtime"
    with session(keys=("secret",), headers={"Authorization": "Bearer secret"}):
        pass
    with session("serve.cors_origins=[https://page.example]", headers={"Origin": "https://page.example"}):
        pass
