"""The conversation of a realtime session: its items as clients see them, and as messages of chat for the model."""

import asyncio
import io
import secrets
import wave
from dataclasses import dataclass, field
from typing import Any

from omni_cli.inputs.data_url import decode_base64
from omni_cli.server.errors import ApiError, bad_request
from omni_cli.server.protocol import AudioPart, ContentPart, ImagePart, InputAudio, Message, TextPart
from omni_cli.server.realtime_events import AudioContent, ImageContent, Item, SaidAudio, SaidText, TextContent
from omni_cli.server.sound import b64


@dataclass(slots=True)
class Turn:
    """`view` is the item as clients see it, `message` what the model is given of it, None if that is nothing."""

    view: dict[str, Any]
    message: Message | None = None

    @property
    def id(self) -> str:
        found: str = self.view["id"]
        return found

    @property
    def size(self) -> int:
        """Characters that it weighs in a body of chat."""
        return 0 if self.message is None else len(self.message.model_dump_json())

    @staticmethod
    def of(item: Item, message: Message) -> "Turn":
        """Echoes all but audio and pictures: the client has those."""
        content = [part.model_dump(exclude={"audio", "image_url"}, exclude_none=True) for part in item.content]
        return Turn(_view(item.role, content, "completed", item.id), message)

    @staticmethod
    def recorded(recording: AudioPart) -> "Turn":
        message = Message(role="user", content=[recording])
        return Turn(_view("user", [{"type": "input_audio"}], "completed"), message)

    @staticmethod
    def empty() -> "Turn":
        """Of an answer that has begun."""
        return Turn(_view("assistant", [], "in_progress"))

    def say(self, text: str, *, spoken: bool, complete: bool) -> None:
        """The answer is over, and this is what has come of it."""
        part = {"type": "output_audio", "transcript": text} if spoken else {"type": "output_text", "text": text}
        self.view.update(content=[part], status="completed" if complete else "incomplete")
        self.message = Message(role="assistant", content=text) if text else None


def _view(role: str, content: list[dict[str, Any]], status: str, item_id: str | None = None) -> dict[str, Any]:
    return {
        "id": item_id or f"item_{secrets.token_hex(12)}", "object": "realtime.item", "type": "message",
        "status": status, "role": role, "content": content,
    }  # fmt: skip


@dataclass(slots=True)
class Turns:
    """In order. `max_bytes` bounds them as the body of a call of chat, which holds a whole conversation too."""

    max_bytes: int
    all: list[Turn] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        return [turn.message for turn in self.all if turn.message is not None]

    def add(self, turn: Turn, after: str | None = None) -> str | None:
        """Puts it behind the item that is named (`root`: first), else at the end; the id of the one before it."""
        if sum(other.size for other in self.all) + turn.size > self.max_bytes:
            message = f"the conversation is larger than {self.max_bytes} bytes (serve.max_body_bytes); delete items"
            raise ApiError(413, message, "conversation_too_large")
        if any(turn.id == other.id for other in self.all):
            raise bad_request(f"item.id: there is an item {turn.id!r} already", param="item.id")
        place = len(self.all)
        if after is not None:
            place = 0 if after == "root" else 1 + self.all.index(self._find(after, "previous_item_id"))
        self.all.insert(place, turn)
        return self.all[place - 1].id if place else None

    def remove(self, item_id: str) -> None:
        self.all.remove(self._find(item_id, "item_id"))

    def _find(self, item_id: str, param: str) -> Turn:
        for turn in self.all:
            if turn.id == item_id:
                return turn
        raise bad_request(f"{param}: there is no item {item_id!r}", param=param, code="item_not_found")


async def as_message(item: Item, label: str, rate_hz: int) -> Message:
    """The item as a message of chat. Raises InputError or ApiError for audio that is none."""
    parts: list[ContentPart] = []
    for index, content in enumerate(item.content):
        match content:
            case TextContent() | SaidText():
                parts.append(TextPart(type="text", text=content.text))
            case SaidAudio():
                parts.append(TextPart(type="text", text=content.transcript))
            case ImageContent():
                parts.append(ImagePart(type="image_url", image_url=content.image_url))
            case AudioContent():
                data = samples(content.audio, f"{label}.content[{index}].audio")
                parts.append(await recording(data, rate_hz))
    return Message(role=item.role, content=parts)


def samples(audio: str, label: str) -> bytes:
    """pcm16 from base64. Raises InputError or ApiError that names `label`."""
    data = decode_base64(audio, label=label)
    if len(data) % 2:
        raise bad_request(f"{label}: is no whole number of 16-bit samples", param=label)
    return data


async def recording(data: bytes, rate_hz: int) -> AudioPart:
    """pcm16 as the file that chat is given; at least one sample."""

    def wav() -> str:
        file = io.BytesIO()
        with wave.open(file, "wb") as sound:
            sound.setparams((1, 2, rate_hz, len(data) // 2, "NONE", ""))
            sound.writeframes(data)
        return b64(file.getvalue())

    return AudioPart(type="input_audio", input_audio=InputAudio(data=await asyncio.to_thread(wav), format="wav"))
