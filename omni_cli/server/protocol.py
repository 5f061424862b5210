"""The bodies of requests, as OpenAI defines them plus our few extensions. An unknown field is refused, on every route.

Ranges are those of the command line's schema; what a field means for the engine is the adapters' business.
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from omni_cli.config.image import MAX_NEGATIVE, MAX_STEPS
from omni_cli.config.sampling import MAX_TOKENS, SamplingConfig

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_TOKENS)]
SeedNumber = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]

Deadline = Annotated[Number, Field(gt=0, le=86_400)]

MAX_SIDE_PIXELS = 16_384
MAX_ITEMS = 65_536
"""Fields, turns and parts of one body, counted as they nest. Checking one takes about 10 us, and nobody is answered
meanwhile: without a bound, a body of the allowed size would hold everybody up for a minute."""


class Body(BaseModel):
    """null is the same as a field that is left out, also of one that is not known. What has too many items is refused
    before they are looked at."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _bounded_and_without_null(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if _has_too_many(data):
            raise ValueError(f"has more than {MAX_ITEMS} fields and items")
        return {key: value for key, value in data.items() if value is not None}


def _has_too_many(data: dict[str, Any]) -> bool:
    count = 0
    left: list[Collection[Any]] = [data.values()]
    while left:
        items = left.pop()
        count += len(items)
        if count > MAX_ITEMS:
            return True
        left += [item.values() if isinstance(item, dict) else item for item in items if isinstance(item, dict | list)]
    return False


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
    """An earlier answer's audio. The model is given the message's content; if there is none, the transcript."""

    id: StrictStr
    data: StrictStr | None = None
    expires_at: StrictInt | None = None
    transcript: StrictStr | None = None


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
    stop: StrictStr | Annotated[list[Annotated[StrictStr, Field(min_length=1)]], Field(max_length=4)] | None = None
    seed: SeedNumber | None = None
    n: Annotated[StrictInt, Field(ge=1)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    user: StrictStr | None = None
    # extensions
    timeout_s: Deadline | None = None
    sampling: Mapping[str, SamplingConfig] | None = None
    synthetic: Mapping[str, Any] | None = None

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


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


class TokenizeRequest(Body):
    """POST /tokenize: `prompt` as it stands, or `messages` as the model will read them."""

    model: StrictStr | None = None
    prompt: StrictStr | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty or blank: give text")
    return text


Said = Annotated[StrictStr, AfterValidator(_not_blank)]


def _check_size(size: str) -> str:
    """Both sides are looked at before anybody multiplies them."""
    sides = re.fullmatch(r"([0-9]{1,6})[xX]([0-9]{1,6})", size)
    if size != "auto" and not (sides and all(1 <= int(side) <= MAX_SIDE_PIXELS for side in sides.groups())):
        raise ValueError(f"is WIDTHxHEIGHT in pixels, each from 1 to {MAX_SIDE_PIXELS}, as in 1024x1024, or auto")
    return size


class ImageRequest(Body):
    """POST /v1/images/generations."""

    model: StrictStr | None = None
    prompt: Annotated[Said, Field(max_length=32_000)]
    n: Annotated[StrictInt, Field(ge=1, le=10)] | None = None
    size: Annotated[StrictStr, AfterValidator(_check_size)] | None = None
    response_format: Literal["url", "b64_json"] | None = None
    output_format: Literal["png", "jpeg", "webp", "gif", "svg"] | None = None
    output_compression: Annotated[StrictInt, Field(ge=0, le=100)] | None = None
    background: Literal["transparent", "opaque", "auto"] | None = None
    quality: Literal["standard", "hd", "low", "medium", "high", "xhigh", "max", "auto"] | None = None
    style: Literal["vivid", "natural"] | None = None
    moderation: Literal["low", "auto"] | None = None
    stream: StrictBool | None = None
    partial_images: Annotated[StrictInt, Field(ge=0, le=3)] | None = None
    user: StrictStr | None = None
    # extensions
    seed: SeedNumber | None = None
    negative_prompt: Annotated[StrictStr, Field(max_length=MAX_NEGATIVE)] | None = None
    steps: Annotated[StrictInt, Field(ge=1, le=MAX_STEPS)] | None = None
    true_cfg_scale: Annotated[Number, Field(ge=0, le=100)] | None = None
    guidance_scale: Number | None = None
    sigmas: Annotated[list[Annotated[Number, Field(gt=0, le=1)]], Field(max_length=MAX_STEPS)] | None = None
    timeout_s: Deadline | None = None


class ImageEditRequest(ImageRequest):
    """POST /v1/images/edits, beside its files."""

    input_fidelity: Literal["high", "low"] | None = None
    # extension
    strength: Annotated[Number, Field(gt=0, le=1)] | None = None


class CompletionRequest(Sampled):
    """POST /v1/completions: text in, text out."""

    prompt: StrictStr | Annotated[list[StrictStr], Field(min_length=1)]
    logprobs: Annotated[StrictInt, Field(ge=0, le=5)] | None = None
    echo: StrictBool | None = None
