"""/v1/realtime: a conversation over one WebSocket, turn by turn, in OpenAI's events. A session keeps the turns and the
settings and has at most one response at work; what a response is, is chat's business.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from omni_cli.errors import InputError
from omni_cli.server import realtime_events as said
from omni_cli.server.errors import ApiError, api_error, bad_request, invalid
from omni_cli.server.leaving import ClientLeft, unless
from omni_cli.server.prepare import Preparer
from omni_cli.server.protocol import Message
from omni_cli.server.realtime_response import RealtimeResponse
from omni_cli.server.realtime_turns import Turn, Turns, as_message, recording, samples
from omni_cli.server.service import Service
from omni_cli.server.system import check_model

log = logging.getLogger("omni.server")

router = APIRouter()

PROTOCOL = "realtime"


@router.websocket("/v1/realtime")
async def realtime(websocket: WebSocket) -> None:
    """Refused before the handshake: 403 for a page of another origin, 404 for another model, 429 for one too many."""
    service: Service = websocket.app.state.service
    preparer: Preparer = websocket.app.state.preparer
    try:
        _check_origin(websocket, preparer.serve.cors_origins)
        check_model(service, websocket.query_params.get("model"))
        if service.sessions >= service.admission.capacity:
            raise ApiError(429, f"{service.sessions} sessions are open, as many as this server takes", "overloaded")
    except ApiError as error:
        refusal = JSONResponse(error.body(), error.status, headers=error.all_headers())
        await websocket.send_denial_response(refusal)
        return
    service.sessions += 1
    try:
        with suppress(WebSocketDisconnect):
            await websocket.accept(PROTOCOL if PROTOCOL in websocket.scope["subprotocols"] else None)
            await Session(
                websocket=websocket, service=service, preparer=preparer, turns=Turns(preparer.serve.max_body_bytes)
            ).run()
    finally:
        service.sessions -= 1


def _check_origin(websocket: WebSocket, origins: tuple[str, ...]) -> None:
    """A browser lets any page open a WebSocket to anywhere; the server has to ask where the page is from."""
    origin = websocket.headers.get("origin")
    if origin is None or "*" in origins or origin in origins:
        return
    if urlsplit(origin).netloc != websocket.headers.get("host"):
        raise ApiError(403, "pages of another origin are not let in (serve.cors_origins)", "foreign_origin")


@dataclass(slots=True)
class Session:
    """One connection, from `session.created` to its end, at which everything of it is freed."""

    websocket: WebSocket
    service: Service
    preparer: Preparer
    turns: Turns
    settings: said.SessionSettings = field(default_factory=said.SessionSettings)
    heard: bytearray = field(default_factory=bytearray)
    dropped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client has left too much unread."""
    response: RealtimeResponse | None = None
    _answering: asyncio.Task[None] | None = None
    _id: str = field(default_factory=lambda: f"sess_{secrets.token_hex(12)}")

    async def run(self) -> None:
        """Until the client leaves or is dropped."""
        await self.send("session.created", session=self._view())
        try:
            with suppress(ClientLeft):
                await unless(self.dropped.wait(), self._receive())
        finally:
            if self._answering is not None:
                self._answering.cancel()
                await asyncio.gather(self._answering, return_exceptions=True)

    async def send(self, kind: str, **fields: Any) -> None:
        """Waits while the client does not read. The JSON is ASCII: a lone surrogate would not pass a text frame."""
        body = {"type": kind, "event_id": f"event_{secrets.token_hex(12)}", **fields}
        await self.websocket.send_text(json.dumps(body, separators=(",", ":")))

    async def refuse(self, error: Exception, event_id: str | None) -> None:
        """An `error` event; the connection stays as it is."""
        found = api_error(error)
        if found.code == "internal_error":
            log.error("a response failed", exc_info=error)
        await self.send("error", error={**found.body()["error"], "event_id": event_id})

    async def _receive(self) -> None:
        while (message := await self.websocket.receive())["type"] != "websocket.disconnect":
            event_id = None
            try:
                body = _object(message.get("text"))
                if isinstance(body.get("event_id"), str):
                    event_id = body["event_id"]
                await self._take(_event(body))
            except (ApiError, InputError) as error:
                await self.refuse(error, event_id)

    async def _take(self, event: said.ClientEvent) -> None:
        match event:
            case said.SessionUpdate():
                await self._update(event.session)
            case said.Append():
                self._append(event.audio)
            case said.Commit():
                await self._commit()
            case said.Clear():
                self.heard.clear()
                await self.send("input_audio_buffer.cleared")
            case said.ItemCreate():
                message = await as_message(event.item, "item", self._rate_hz)
                await self.preparer.conversation([message, _ASKED])
                await self.add(Turn.of(event.item, message), event.previous_item_id)
            case said.ItemDelete():
                self.turns.remove(event.item_id)
                await self.send("conversation.item.deleted", item_id=event.item_id)
            case said.ResponseCreate():
                self._respond(event)
            case said.ResponseCancel():
                if self.response is None or event.response_id not in (None, self.response.id):
                    raise bad_request("there is no such response at work", code="response_cancel_not_active")
                self.response.cancel()

    async def _update(self, update: said.SessionSettings) -> None:
        if update.model is not None:
            check_model(self.service, update.model)
        held, new = (one.model_dump(exclude_unset=True) for one in (self.settings, update))
        settings = said.SessionSettings.model_validate(said.overlaid(held, new))
        if self.heard and settings.audio.input.format != self.settings.audio.input.format:
            raise bad_request("session.audio.input.format: commit or clear the buffer first")
        self.settings = settings
        await self.send("session.updated", session=self._view())

    def _append(self, audio: str) -> None:
        data = samples(audio, "audio")
        serve = self.preparer.serve
        limit = int(min(2 * self._rate_hz * serve.max_audio_s, serve.max_body_bytes))
        if len(self.heard) + len(data) > limit:
            what = f"{limit} bytes (serve.max_audio_s, serve.max_body_bytes)"
            raise bad_request(f"audio: with it the buffer is larger than {what}; it is left out", param="audio")
        self.heard += data

    async def _commit(self) -> None:
        if not self.heard:
            raise bad_request("the buffer has no audio", code="input_audio_buffer_commit_empty")
        data, self.heard = bytes(self.heard), bytearray()
        turn = Turn.recorded(await recording(data, self._rate_hz))
        previous = self.turns.add(turn)
        await self.send("input_audio_buffer.committed", item_id=turn.id, previous_item_id=previous)
        await self._show(turn, previous)

    async def add(self, turn: Turn, after: str | None = None) -> None:
        """Puts a turn into the conversation and says so."""
        await self._show(turn, self.turns.add(turn, after))

    async def _show(self, turn: Turn, previous: str | None) -> None:
        await self.send("conversation.item.added", previous_item_id=previous, item=turn.view)
        if turn.view["status"] == "completed":
            await self.send("conversation.item.done", previous_item_id=previous, item=turn.view)

    def _respond(self, event: said.ResponseCreate) -> None:
        if self.response is not None:
            raise bad_request(
                f"response {self.response.id} is at work; one at a time",
                code="conversation_already_has_active_response",
            )
        self.response = RealtimeResponse(session=self, event=event)
        self._answering = asyncio.ensure_future(self._answer(self.response))

    async def _answer(self, response: RealtimeResponse) -> None:
        try:
            with suppress(WebSocketDisconnect):
                await response.run()
        finally:
            self.response = None

    @property
    def _rate_hz(self) -> int:
        return self.settings.audio.input.format.rate

    def _view(self) -> dict[str, Any]:
        """The session as clients see it, with everything that they have not set."""
        hidden = {"seed", "timeout_s", "sampling", "synthetic"}
        settings = self.settings.model_dump(exclude=hidden)
        return {
            **settings, "id": self._id, "object": "realtime.session", "model": self.service.name,
            "output_modalities": [self.modality(self.settings)],
        }  # fmt: skip

    def modality(self, settings: said.Settings) -> str:
        """`audio` always brings its transcript, so that is all there is to say."""
        return "audio" if "audio" in (settings.output_modalities or self.service.plan.outputs) else "text"


_ASKED = Message(role="user", content="?")  # beside an item that is only looked at


def _object(text: str | None) -> Mapping[str, Any]:
    if text is None:
        raise bad_request("an event is a text frame; audio goes into input_audio_buffer.append", code="invalid_frame")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the event is not JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise bad_request("the event is not a JSON object", code="invalid_json")
    return body


def _event(body: Mapping[str, Any]) -> said.ClientEvent:
    try:
        return said.CLIENT_EVENT.validate_python(body)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        known = problems[0]["loc"][:1] == (body.get("type"),)
        raise invalid([{**problem, "loc": problem["loc"][known:]} for problem in problems]) from error
