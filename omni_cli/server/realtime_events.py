"""What clients of /v1/realtime may say: OpenAI's event names and objects (the GA form), and our few extensions.

An unknown event, field or value is refused, as on every route. What an event does is the session's business.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictInt, StrictStr, TypeAdapter

from omni_cli.config.sampling import SamplingConfig
from omni_cli.inputs.data_url import is_data_url
from omni_cli.server.protocol import Body, Count, Number, SeedNumber

Modalities = Annotated[list[Literal["text", "audio"]], Field(min_length=1, max_length=2)]


class InputFormat(Body):
    """pcm16 little endian, mono, at the rate that the client declares."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Annotated[StrictInt, Field(ge=8_000, le=96_000)] = 24_000


class OutputFormat(Body):
    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24_000] = 24_000


class AudioIn(Body):
    """Turns are the client's: there is no detection of them, so `turn_detection` is null."""

    format: InputFormat = InputFormat()
    turn_detection: None = None
    transcription: None = None
    noise_reduction: None = None


class AudioOut(Body):
    format: OutputFormat = OutputFormat()
    voice: StrictStr = "default"
    speed: Annotated[Number, Field(ge=1, le=1)] = 1


class Audio(Body):
    input: AudioIn = AudioIn()
    output: AudioOut = AudioOut()


class Settings(Body):
    """What a session sets and a response may override. `output_modalities` of null is all that is deployed."""

    output_modalities: Modalities | None = None
    instructions: StrictStr = ""
    audio: Audio = Audio()
    max_output_tokens: Count | Literal["inf"] = "inf"
    tools: Annotated[tuple[Any, ...], Field(max_length=0)] = ()
    tool_choice: Literal["auto", "none"] = "auto"
    # extensions
    seed: SeedNumber | None = None
    timeout_s: Annotated[Number, Field(gt=0, le=86_400)] | None = None
    sampling: Mapping[str, SamplingConfig] | None = None
    synthetic: Mapping[str, Any] | None = None


class SessionSettings(Settings):
    type: Literal["realtime"] = "realtime"
    model: StrictStr | None = None


class TextContent(Body):
    type: Literal["input_text"]
    text: StrictStr


class AudioContent(Body):
    """`audio` is base64 of pcm16 in the session's input format."""

    type: Literal["input_audio"]
    audio: StrictStr
    transcript: StrictStr | None = None


def _data_url(url: str) -> str:
    if not is_data_url(url):
        raise ValueError("should be a data URL")
    return url


class ImageContent(Body):
    """`image_url` is a data URL."""

    type: Literal["input_image"]
    image_url: Annotated[StrictStr, AfterValidator(_data_url)]
    detail: Literal["auto", "low", "high"] | None = None


class SaidText(Body):
    type: Literal["output_text"]
    text: StrictStr


class SaidAudio(Body):
    """An earlier answer that was spoken: its transcript is what the model is given."""

    type: Literal["output_audio"]
    transcript: StrictStr


Content = Annotated[TextContent | AudioContent | ImageContent | SaidText | SaidAudio, Field(discriminator="type")]


class Item(Body):
    """A turn of the conversation."""

    id: Annotated[StrictStr, Field(min_length=1, max_length=64)] | None = None
    object: Literal["realtime.item"] | None = None
    type: Literal["message"]
    role: Literal["user", "assistant", "system"]
    status: Literal["completed", "incomplete", "in_progress"] | None = None
    content: Annotated[list[Content], Field(min_length=1)]


class ResponseSettings(Settings):
    """`input` stands in for the conversation; `conversation` of `none` keeps the answer out of it."""

    conversation: Literal["auto", "none"] = "auto"
    input: list[Item] | None = None
    metadata: Mapping[str, StrictStr] | None = None


class Event(Body):
    event_id: Annotated[StrictStr, Field(max_length=512)] | None = None


class SessionUpdate(Event):
    type: Literal["session.update"]
    session: SessionSettings


class Append(Event):
    type: Literal["input_audio_buffer.append"]
    audio: StrictStr


class Commit(Event):
    type: Literal["input_audio_buffer.commit"]


class Clear(Event):
    type: Literal["input_audio_buffer.clear"]


class ItemCreate(Event):
    type: Literal["conversation.item.create"]
    previous_item_id: StrictStr | None = None
    item: Item


class ItemDelete(Event):
    type: Literal["conversation.item.delete"]
    item_id: StrictStr


class ResponseCreate(Event):
    type: Literal["response.create"]
    response: ResponseSettings = ResponseSettings()


class ResponseCancel(Event):
    type: Literal["response.cancel"]
    response_id: StrictStr | None = None


ClientEvent = Annotated[
    SessionUpdate | Append | Commit | Clear | ItemCreate | ItemDelete | ResponseCreate | ResponseCancel,
    Field(discriminator="type"),
]
CLIENT_EVENT: TypeAdapter[ClientEvent] = TypeAdapter(ClientEvent)


def overlaid(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` wins, leaf by leaf in `audio`, whole elsewhere."""
    merged = {**under, **over}
    for key in ("audio", "input", "output", "format"):
        if isinstance(under.get(key), Mapping) and isinstance(over.get(key), Mapping):
            merged[key] = overlaid(under[key], over[key])
    return merged
