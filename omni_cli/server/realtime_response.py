"""One response of a realtime session: a call of chat, told in OpenAI's realtime events. When it is cancelled, it first
frees what it holds in every stage and then says that it is over.
"""

import asyncio
import secrets
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.websockets import WebSocketDisconnect

from omni_cli.server.chat import Choice, make_choice, pieces, usage
from omni_cli.server.errors import api_error, bad_request
from omni_cli.server.leaving import ClientLeft, unless
from omni_cli.server.protocol import AudioOptions, ChatRequest, Message
from omni_cli.server.realtime_events import ResponseCreate, Settings, overlaid
from omni_cli.server.realtime_turns import Turn, as_message

if TYPE_CHECKING:
    from omni_cli.server.realtime import Session


@dataclass(slots=True)
class RealtimeResponse:
    """`run` it once, as a task; `cancel` it at any time."""

    session: "Session"
    event: ResponseCreate
    settings: Settings = field(init=False)
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(12)}")
    _choice: Choice | None = None
    _turn: Turn | None = None
    _cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        own = self.event.response.model_dump(exclude_unset=True, include=set(Settings.model_fields))
        held = self.session.settings.model_dump(exclude_unset=True, include=set(Settings.model_fields))
        self.settings = Settings.model_validate(overlaid(held, own))

    def cancel(self) -> None:
        self._cancelled.set()

    async def run(self) -> None:
        """To its end, whatever that is. What is wrong before it has begun is an `error` event and nothing else."""
        try:
            await unless(self._cancelled.wait(), self._work())
        except ClientLeft:
            await self._end("cancelled", {"type": "cancelled", "reason": "client_cancelled"})
        except WebSocketDisconnect:
            raise
        except Exception as error:
            await self.session.refuse(error, self.event.event_id)
            if self._turn is not None:
                what = {key: api_error(error).body()["error"][key] for key in ("type", "code", "message")}
                await self._end("failed", {"type": "failed", "error": what})
        else:
            cut = self._choice is not None and self._choice.reason == "length"
            why = {"type": "incomplete", "reason": "max_output_tokens"} if cut else None
            await self._end("incomplete" if cut else "completed", why)

    async def _work(self) -> None:
        service = self.session.service
        prepared = await self.session.preparer.chat(await self._request())
        choice = self._choice = make_choice(service, prepared.requests[0], "pcm", 0)
        async with AsyncExitStack() as held:
            await service.enter(prepared.requests, held)
            await self._begin()
            async with aclosing(pieces(service, [choice], self.session.dropped)) as found:
                async for _, chunk in found:
                    await self._say(choice.take(chunk))
        choice.end()

    @property
    def _spoken(self) -> bool:
        return self.session.modality(self.settings) == "audio"

    async def _request(self) -> ChatRequest:
        """The conversation so far as a call of chat."""
        rate_hz = self.settings.audio.input.format.rate
        given = self.event.response.input
        if given is None:
            messages = self.session.turns.messages
        else:
            messages = [await as_message(item, f"response.input[{at}]", rate_hz) for at, item in enumerate(given)]
        if not messages:
            raise bad_request("there is nothing to respond to: the conversation is empty")
        settings = self.settings
        if settings.instructions:
            messages.insert(0, Message(role="system", content=settings.instructions))
        transcript = ["text"] if "text" in self.session.service.plan.outputs else []
        return ChatRequest(
            messages=messages,
            modalities=[*transcript, "audio"] if self._spoken else ["text"],
            audio=AudioOptions(voice=settings.audio.output.voice) if self._spoken else None,
            max_completion_tokens=None if settings.max_output_tokens == "inf" else settings.max_output_tokens,
            seed=settings.seed,
            timeout_s=settings.timeout_s,
            sampling=settings.sampling,
            synthetic=settings.synthetic,
        )

    async def _begin(self) -> Turn:
        turn = self._turn = Turn.empty()
        await self.session.send("response.created", response=self._view("in_progress", None))
        await self._send("response.output_item.added", item=turn.view)
        if self.event.response.conversation == "auto":
            await self.session.add(turn)
        await self._send("response.content_part.added", part=self._part(), content_index=0)
        return turn

    async def _say(self, delta: dict[str, Any]) -> None:
        audio = delta.get("audio", {})
        if audio.get("transcript"):
            await self._send("response.output_audio_transcript.delta", delta=audio["transcript"], content_index=0)
        elif audio.get("data"):
            await self._send("response.output_audio.delta", delta=audio["data"], content_index=0)
        elif delta.get("content"):
            await self._send("response.output_text.delta", delta=delta["content"], content_index=0)

    async def _end(self, status: str, details: dict[str, Any] | None) -> None:
        turn, text = self._turn or await self._begin(), self._text
        if self._spoken:
            await self._send("response.output_audio.done", content_index=0)
            await self._send("response.output_audio_transcript.done", transcript=text, content_index=0)
        else:
            await self._send("response.output_text.done", text=text, content_index=0)
        await self._send("response.content_part.done", part=self._part(), content_index=0)
        turn.say(text, spoken=self._spoken, complete=status == "completed")
        await self._send("response.output_item.done", item=turn.view)
        if self.event.response.conversation == "auto":
            await self.session.send("conversation.item.done", item=turn.view)
        await self.session.send("response.done", response=self._view(status, details))

    async def _send(self, kind: str, **fields: Any) -> None:
        if self._turn is not None and "item" not in fields:
            fields["item_id"] = self._turn.view["id"]
        await self.session.send(kind, response_id=self.id, output_index=0, **fields)

    @property
    def _text(self) -> str:
        return self._choice.text if self._choice is not None else ""

    def _part(self) -> dict[str, Any]:
        return {"type": "audio", "transcript": self._text} if self._spoken else {"type": "text", "text": self._text}

    def _view(self, status: str, details: dict[str, Any] | None) -> dict[str, Any]:
        """The response as clients see it; its output and usage once it is over."""
        over = status != "in_progress"
        counted = usage([self._choice] if self._choice is not None else [])
        split = counted["completion_tokens_details"]
        return {
            "id": self.id, "object": "realtime.response", "status": status, "status_details": details,
            "output": [self._turn.view] if over and self._turn is not None else [],
            "output_modalities": [self.session.modality(self.settings)],
            "audio": {"output": self.settings.audio.output.model_dump(exclude={"speed"})},
            "max_output_tokens": self.settings.max_output_tokens,
            "metadata": self.event.response.metadata,
            "usage": {
                "input_tokens": counted["prompt_tokens"],
                "output_tokens": counted["completion_tokens"],
                "total_tokens": counted["total_tokens"],
                "output_token_details": {name: split[name] for name in ("text_tokens", "audio_tokens")},
            } if over else None,
        }  # fmt: skip
