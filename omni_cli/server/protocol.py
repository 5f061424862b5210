"""The bodies of requests, as OpenAI defines them plus our few extensions. An unknown field is refused, on every route.

Ranges are those of the command line's schema; what a field means for the engine is the adapters' business.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from omni_cli.config.sampling import MAX_TOKENS, SamplingConfig

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_TOKENS)]
SeedNumber = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]


class Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TextPart(Body):
    type: Literal["text"]
    text: StrictStr


class MediaUrl(Body):
    """`url` is a data URL, or http(s) and file where the server allows them."""

    url: StrictStr
    detail: StrictStr | None = None


class ImagePart(Body):
    type: Literal["image_url"]
    image_url: MediaUrl | StrictStr


class AudioUrlPart(Body):
    type: Literal["audio_url"]
    audio_url: MediaUrl | StrictStr


class VideoPart(Body):
    type: Literal["video_url"]
    video_url: MediaUrl | StrictStr


class InputAudio(Body):
    """`data` is base64 or a data URL; `format` must be what the data really are."""

    data: StrictStr
    format: StrictStr | None = None


class AudioPart(Body):
    type: Literal["input_audio"]
    input_audio: InputAudio


ContentPart = Annotated[TextPart | ImagePart | AudioUrlPart | VideoPart | AudioPart, Field(discriminator="type")]


class AudioReference(Body):
    """An earlier answer's audio; its transcript stands in the content, so it adds nothing here."""

    id: StrictStr


class Message(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: StrictStr | Annotated[list[ContentPart], Field(min_length=1)] | None = None
    name: StrictStr | None = None
    audio: AudioReference | None = None
    refusal: StrictStr | None = None


class AudioOptions(Body):
    voice: StrictStr | None = None
    format: StrictStr = "wav"


class StreamOptions(Body):
    include_usage: StrictBool = False
    include_obfuscation: StrictBool = False


class Sampled(Body):
    """What chat and plain completions share."""

    model: StrictStr | None = None
    max_tokens: Count | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    logit_bias: Mapping[str, Annotated[Number, Field(ge=-100, le=100)]] | None = None
    stop: StrictStr | Annotated[list[StrictStr], Field(max_length=4)] | None = None
    seed: SeedNumber | None = None
    n: Annotated[StrictInt, Field(ge=1)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    user: StrictStr | None = None
    # extensions
    timeout_s: Annotated[Number, Field(gt=0, le=86_400)] | None = None
    sampling: Mapping[str, SamplingConfig] | None = None
    synthetic: Mapping[str, Any] | None = None


class ChatRequest(Sampled):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    modalities: Annotated[list[StrictStr], Field(min_length=1)] | None = None
    audio: AudioOptions | None = None
    max_completion_tokens: Count | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    metadata: Mapping[str, StrictStr] | None = None
    store: StrictBool | None = None


class CompletionRequest(Sampled):
    """POST /v1/completions: text in, text out."""

    prompt: StrictStr | Annotated[list[StrictStr], Field(min_length=1)]
    logprobs: Annotated[StrictInt, Field(ge=0, le=5)] | None = None
    echo: StrictBool | None = None
