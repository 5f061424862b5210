"""One request's conversation, from the command line, a messages file or a batch line, with all its media decoded.

Paths are relative to the working directory of the shell. Nothing is fetched; text is never interpreted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np

from omni_cli.errors import InputError
from omni_cli.inputs.data_url import data_of, is_data_url
from omni_cli.inputs.decode import decode
from omni_cli.inputs.limits import InputLimits
from omni_cli.inputs.text import require_content
from stages.messages import ChatMessage, Part
from stages.payload import Payload, Tensor

ROLES = ("system", "user", "assistant")
KINDS = ("text", "image", "audio", "video")
VIDEO_FPS = 2.0  # frames a second that are kept of a video, the default of Qwen's video processors


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFact:
    """Where a medium came from and what was done to it, for the manifest and for the user."""

    label: str
    sha256: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """`media` holds one tensor per medium, named as the parts of `messages` name them."""

    messages: tuple[ChatMessage, ...]
    media: Payload
    facts: tuple[MediaFact, ...]

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of media in it, without text."""
        return frozenset(p.kind for m in self.messages for p in m.parts if p.kind != "text")


class ConversationBuilder:
    """Collects the parts of one request and decodes their media, each from a path or from bytes."""

    def __init__(self, limits: InputLimits) -> None:
        self.limits = limits
        self.tensors: list[Tensor] = []
        self.facts: list[MediaFact] = []

    def part(self, kind: str, value: str, label: str | None) -> Part:
        """A part of a message. `value` is the text, or the path or data URL of the medium. Raises InputError."""
        if kind == "text":
            return Part(kind="text", text=value)
        if is_data_url(value):
            return self.medium(kind, data_of(value, label=label or kind), label or kind)
        return self.medium(kind, Path(value), label)

    def medium(self, kind: Any, media: Path | bytes, label: str | None) -> Part:
        """An image, audio or video, decoded. `label` is what messages call it. Raises InputError."""
        decoded = decode(kind, media, label=label, limits=self.limits, sample_fps=VIDEO_FPS)
        array, name = np.ascontiguousarray(decoded.array), f"media{len(self.tensors)}"
        data = array.data.cast("B")
        self.tensors.append(Tensor(name=name, dtype=str(array.dtype), shape=array.shape, data=data))
        self.facts.append(MediaFact(label=decoded.label, sha256=decoded.sha256, notes=decoded.notes))
        return Part(kind=kind, media=name, fps=decoded.fps)

    def finish(self, messages: Sequence[ChatMessage], label: str) -> Conversation:
        if all(message.role != "user" for message in messages):
            raise InputError(f"{label}: has no turn of the user", param=label)
        texts = [part.text for message in messages if message.role == "user" for part in message.parts]
        require_content(texts, media_count=len(self.tensors), label=label)
        return Conversation(
            messages=tuple(messages), media=Payload(tensors=tuple(self.tensors)), facts=tuple(self.facts)
        )


def from_prompt(
    prompt: str | None,
    *,
    images: Sequence[str] = (),
    audios: Sequence[str] = (),
    videos: Sequence[str] = (),
) -> Conversation:
    """One user turn: the media in the order image, audio, video, then the text. Raises InputError."""
    builder = ConversationBuilder(InputLimits())
    parts = [
        builder.part(kind, path, None)
        for kind, paths in (("image", images), ("audio", audios), ("video", videos))
        for path in paths
    ]
    if prompt:
        parts.append(builder.part("text", prompt, None))
    return builder.finish((ChatMessage(role="user", parts=tuple(parts)),), "prompt")


def from_messages(messages: object) -> Conversation:
    """Several turns: a list of {"role", "content"}, content a string or a list of {"type", <type>} parts.

    A part is {"type": "text", "text": ...} or {"type": "image" | "audio" | "video", <type>: path or data URL}. Raises
    InputError naming the index of what is wrong.
    """
    builder = ConversationBuilder(InputLimits())
    if not isinstance(messages, list) or not messages:
        raise InputError("messages: must be a non-empty list of turns", param="messages")
    return builder.finish([_turn(builder, m, f"messages[{i}]") for i, m in enumerate(messages)], "messages")


def _turn(builder: ConversationBuilder, message: object, label: str) -> ChatMessage:
    fields = _fields(message, label, ("role", "content"))
    role, content = fields.get("role"), fields.get("content")
    if role not in ROLES:
        raise _refuse(f"{label}.role", f"is {shortened(role)}, not one of {', '.join(ROLES)}")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        raise _refuse(f"{label}.content", "must be text or a non-empty list of parts")
    parts = tuple(_part(builder, p, f"{label}.content[{i}]") for i, p in enumerate(content))
    return ChatMessage(role=role, parts=parts)


def _part(builder: ConversationBuilder, part: object, label: str) -> Part:
    if not isinstance(part, dict) or part.get("type") not in KINDS:
        kind = part.get("type") if isinstance(part, dict) else part
        raise _refuse(f"{label}.type", f"is {shortened(kind)}, not one of {', '.join(KINDS)}")
    kind = part["type"]
    value = _fields(part, label, ("type", kind)).get(kind)
    if not isinstance(value, str):
        raise _refuse(f"{label}.{kind}", "must be text" if kind == "text" else "must be the path of a file")
    return builder.part(kind, value, None if kind == "text" else f"{label} ({Path(value).absolute()})")


def _fields(value: object, label: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(label, f"must be an object with {' and '.join(known)}")
    for key in value:
        if key not in known:
            raise _refuse(f"{label}.{key}", f"is not known here; {label} has {' and '.join(known)}")
    return value


def _refuse(label: str, problem: str) -> InputError:
    return InputError(f"{label} {problem}", param=label)
