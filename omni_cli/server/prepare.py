"""From the body of a chat or completion to what the engine takes: media decoded, settings checked, one schema for all.

Decoding runs in a thread; nothing is scheduled before everything is known to be good.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omni_cli.config.request import request_line
from omni_cli.config.sampling import SEEDS
from omni_cli.config.schema import RequestConfig, ServeConfig
from omni_cli.errors import InputError
from omni_cli.inputs.conversation import Conversation, ConversationBuilder
from omni_cli.inputs.limits import InputLimits
from omni_cli.plan.admission import request_problems
from omni_cli.plan.drawing import content_problems, drawing, shows_previews
from omni_cli.runtime.request import OmniRequest, draw_seed
from omni_cli.server.errors import ApiError, bad_request
from omni_cli.server.media import MediaSource, audio_data
from omni_cli.server.protocol import (
    AudioPart,
    AudioUrlPart,
    ChatRequest,
    CompletionRequest,
    ImagePart,
    ImageRequest,
    MediaUrl,
    Message,
    Sampled,
    TextPart,
    TokenizeRequest,
    VideoPart,
)
from omni_cli.server.service import Service
from omni_cli.trace.summary import type_of
from stages.messages import ChatMessage, Part, Tokenize

log = logging.getLogger("omni.server")

# OpenAI's names of what belongs to the stage that writes the text.
_TEXT_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias")
_IMAGE = ("size", "steps", "true_cfg_scale", "negative_prompt", "sigmas", "strength")
# What leaves the answer as it is (null, 0, false, nothing) may stand there; anything else is refused.
_UNSUPPORTED = ("store",)
_UNSUPPORTED_WITHOUT_WEIGHTS = ("presence_penalty", "frequency_penalty", "logit_bias", "stop")

_AT_ONCE = 4096  # characters of text; media are always more

DEFAULT_VOICE = "default"  # on every recipe: whoever speaks if nobody is named. Clients cannot leave the voice out


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The requests of one call, one per choice. `created` is for the ids that clients see."""

    id: str
    requests: tuple[OmniRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparer:
    """Holds what all calls share."""

    service: Service
    serve: ServeConfig
    media: MediaSource
    limits: InputLimits

    async def chat(self, body: ChatRequest, traceparent: str | None = None) -> Prepared:
        """Raises ApiError or InputError that names the parameter."""
        limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        if body.max_tokens is not None and body.max_tokens != limit:
            raise bad_request("max_tokens and max_completion_tokens differ; keep one", param="max_tokens")
        voice = body.audio.voice if body.audio is not None else None
        if body.audio is not None and body.modalities is not None and "audio" not in map(type_of, body.modalities):
            raise bad_request("audio: is given, and modalities asks for none", param="audio")
        if body.top_logprobs is not None and not body.logprobs:
            raise bad_request("top_logprobs needs logprobs=true", param="top_logprobs")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        settings = self._settings(body, limit, modalities=body.modalities, voice=voice, logprobs=logprobs)
        settings, options = self._checked(settings, body)
        talk = await self.conversation(body.messages)
        return self._requests("chatcmpl", body.n, settings, options, talk, traceparent)

    async def completion(self, body: CompletionRequest, prompt: str, traceparent: str | None = None) -> Prepared:
        settings = self._settings(body, body.max_tokens, modalities=["text"], voice=None, logprobs=body.logprobs)
        settings, options = self._checked(settings, body)
        talk = await asyncio.to_thread(self._turn, prompt)
        return self._requests("cmpl", body.n, settings, options, talk, traceparent)

    async def images(
        self, body: ImageRequest, traceparent: str | None = None, pictures: Sequence[bytes] = ()
    ) -> tuple[Prepared, tuple[str, ...]]:
        """A request for each picture, each with the next seed; and what the body sets that cannot act. `pictures` are
        files to start from."""
        able = self.service.plan.image
        if able is None:
            raise bad_request(f"recipe {self.service.plan.recipe} draws no pictures", param="model")
        image = {name: value for name in _IMAGE if (value := getattr(body, name, None)) is not None}
        if body.output_format is not None:
            image["format"] = body.output_format
        line = {"modalities": ["image"], "seed": body.seed, "timeout_s": body.timeout_s, "image": image}
        checked = request_line(line, self.service.loaded)
        names = {"image.format": "output_format"}
        found_wrong = request_problems(self.service.plan, checked.request)
        problems = [replace(p, key=names.get(p.key, p.key.removeprefix("image."))) for p in found_wrong]
        talk = await asyncio.to_thread(self._turn, body.prompt, pictures)
        problems += [replace(problem, key="image") for problem in content_problems(able, talk.messages)]
        if problems:
            raise InputError("\n".join(map(str, problems)), param=problems[0].key)
        previews = shows_previews(self.service.plan)
        params, idle = drawing(able, checked.request.image, talk.media.tensors, previews=previews)
        shown = (body.partial_images or 0) if previews else 0
        # what the recipe says of previews is for `omni run`: who does not ask for partial images gets none
        params = replace(params, preview_every=-(-params.taken // (shown + 1)) if shown else 0)
        if body.partial_images and not shown:
            idle += ("partial_images has no effect: the stage that denoises does not decode",)
        idle += tuple(f"{fact.label}: {note}" for fact in talk.facts for note in fact.notes)
        found = self._requests("img", body.n, checked.request, checked.options, talk, traceparent)
        requests = (replace(r, choice=0, seed=(r.seed + r.choice) % SEEDS, image=params) for r in found.requests)
        return replace(found, requests=tuple(requests)), tuple(note.replace("image.", "") for note in idle)

    async def tokens(self, body: TokenizeRequest, traceparent: str | None = None) -> Prepared:
        """What asks for the token ids of a text, or of a conversation."""
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("give either prompt or messages", param="prompt")
        checked = request_line({"modalities": ["text"]}, self.service.loaded)
        kind: Tokenize = "text" if body.messages is None else "prompt"
        if body.messages is None:
            talk = await asyncio.to_thread(self._turn, body.prompt or "")
        else:
            talk = await self.conversation(body.messages)
        found = self._requests("tok", 1, checked.request, checked.options, talk, traceparent)
        return replace(found, requests=tuple(replace(request, tokenize=kind) for request in found.requests))

    async def conversation(self, messages: Sequence[Message]) -> Conversation:
        """Reads what the messages name, then decodes it: in a thread, unless that is done sooner than a thread runs."""
        turns: list[tuple[str, list[tuple[str, str | bytes | Path, str]]]] = []
        for index, message in enumerate(messages):
            role = "system" if message.role == "developer" else message.role
            turns.append((role, await self._parts(message, f"messages[{index}].content")))
        sizes = (len(c) if isinstance(c, str) else _AT_ONCE for _, parts in turns for _, c, _ in parts)
        if sum(64 + size for size in sizes) < _AT_ONCE:
            return self._decode(turns)
        return await asyncio.to_thread(self._decode, turns)

    async def _parts(self, message: Message, label: str) -> list[tuple[str, str | bytes | Path, str]]:
        if message.content is None:
            if message.role == "assistant":
                return [("text", (message.audio and message.audio.transcript) or "", label)]
            raise bad_request(f"{label}: is missing", param=label)
        if isinstance(message.content, str):
            return [("text", message.content, label)]
        found: list[tuple[str, str | bytes | Path, str]] = []
        for index, part in enumerate(message.content):
            where = f"{label}[{index}]"
            match part:
                case TextPart():
                    found.append(("text", part.text, where))
                case AudioPart():
                    found.append(("audio", audio_data(part.input_audio.data, part.input_audio.format, where), where))
                case ImagePart():
                    found.append(("image", await self.media.read(_url(part.image_url), where), where))
                case AudioUrlPart():
                    found.append(("audio", await self.media.read(_url(part.audio_url), where), where))
                case VideoPart():
                    found.append(("video", await self.media.read(_url(part.video_url), where), where))
        return found

    def _decode(self, turns: Sequence[tuple[str, Sequence[tuple[str, str | bytes | Path, str]]]]) -> Conversation:
        builder = ConversationBuilder(self.limits)
        messages = []
        for role, parts in turns:
            made = tuple(
                builder.part("text", content, None)
                if isinstance(content, str)
                else builder.medium(kind, content, label)
                for kind, content, label in parts
            )
            messages.append(ChatMessage(role=role, parts=made))  # type: ignore[arg-type]
        return builder.finish(messages, "messages")

    def _turn(self, prompt: str, pictures: Sequence[bytes] = ()) -> Conversation:
        builder = ConversationBuilder(self.limits)
        seen = (builder.medium("image", picture, "image") for picture in pictures)
        turn = ChatMessage(role="user", parts=(*seen, Part(kind="text", text=prompt)))
        return builder.finish((turn,), "prompt")

    def _refuse_unsupported(self, body: Sampled) -> None:
        """ApiError 400 for a setting that says nothing, or would change the answer and is followed by nothing here."""
        if body.stream_options is not None and not body.stream:
            raise bad_request("stream_options needs stream=true", param="stream_options")
        has_weights = self.service.loaded.family.has_weights
        for name in _UNSUPPORTED if has_weights else (*_UNSUPPORTED, *_UNSUPPORTED_WITHOUT_WEIGHTS):
            if getattr(body, name, None):
                who = "this server" if name in _UNSUPPORTED else f"recipe {self.service.plan.recipe}"
                raise bad_request(f"{name}: is not supported by {who}", param=name, code="unsupported_parameter")

    def _settings(
        self,
        body: Sampled,
        max_tokens: int | None,
        *,
        modalities: list[str] | None,
        voice: str | None,
        logprobs: int | None = None,
    ) -> dict[str, Any]:
        """The body's settings as a line of a batch would say them."""
        self._refuse_unsupported(body)
        plan = self.service.plan
        writer = plan.outputs.get("text")
        if logprobs is not None and (writer is None or not self.service.loaded.family.stages[writer].logprobs):
            raise bad_request(f"logprobs: are not supported by recipe {plan.recipe}", param="logprobs")
        sampling: dict[str, dict[str, Any]] = {
            stage: config.model_dump(exclude_unset=True) for stage, config in (body.sampling or {}).items()
        }
        own = {name: getattr(body, name) for name in _TEXT_SAMPLING if getattr(body, name) is not None}
        if max_tokens is not None:
            own["max_tokens"] = max_tokens
        if logprobs is not None:
            own["logprobs"] = logprobs
        if body.stop:
            own["stop"] = [body.stop] if isinstance(body.stop, str) else list(body.stop)
        if own and writer is not None:
            doubled = own.keys() & sampling.get(writer, {}).keys()
            if doubled:
                raise bad_request(f"{doubled.pop()} and sampling.{writer} are both given; keep one", param="sampling")
            sampling[writer] = {**own, **sampling.get(writer, {})}
        settings: dict[str, Any] = {
            "modalities": modalities,
            "voice": None if voice == DEFAULT_VOICE else voice,
            "seed": body.seed,
            "timeout_s": body.timeout_s,
        }
        if sampling:
            settings["sampling"] = sampling
        return settings

    def _checked(self, settings: Mapping[str, Any], body: Sampled) -> tuple[Any, Any]:
        """The settings and the family's options by the one schema. Raises InputError or ApiError."""
        line = dict(settings)
        if body.synthetic is not None:
            line[self.service.loaded.options_node] = dict(body.synthetic)
            if self.service.loaded.options_node != "synthetic":
                raise bad_request("synthetic: only synthetic recipes have these knobs", param="synthetic")
        checked = request_line(line, self.service.loaded)
        problems = request_problems(self.service.plan, checked.request)
        if problems:
            raise InputError("\n".join(map(str, problems)), param=problems[0].key)
        asked = checked.request.modalities
        if asked is not None and "text" not in asked and _logged(checked.request):
            raise bad_request("logprobs: are of the text, which modalities leaves out", param="logprobs")
        return checked.request, checked.options

    def _requests(
        self,
        prefix: str,
        n: int | None,
        settings: RequestConfig,
        options: Any,
        talk: Conversation,
        traceparent: str | None,
    ) -> Prepared:
        choices = n or 1
        if choices > self.serve.max_choices:
            raise bad_request(f"n is {choices}; this server makes at most {self.serve.max_choices}", param="n")
        foreign = talk.kinds - set(self.service.plan.media)
        if foreign:
            raise bad_request(f"{', '.join(sorted(foreign))} cannot be read by {self.service.name}", param="messages")
        call = f"{prefix}-{secrets.token_hex(12)}"
        if self.serve.log_prompts:
            texts = [part.text or f"[{part.kind}]" for message in talk.messages for part in message.parts]
            log.info("%s: %r", call, texts)
        seed = draw_seed() if settings.seed is None else settings.seed
        timeout_s = min(settings.timeout_s or self.serve.timeout_s, self.serve.timeout_s)
        if settings.timeout_s is not None and settings.timeout_s > self.serve.timeout_s:
            raise ApiError(400, f"timeout_s may be at most {self.serve.timeout_s:g}", "invalid_value", "timeout_s")
        deployed = tuple(self.service.plan.outputs)
        second = [output for output in deployed if type_of(output) == "audio"][1:]  # a message has room for one sound
        outputs = settings.modalities or tuple(output for output in deployed if output not in second)
        return Prepared(
            id=call,
            requests=tuple(
                OmniRequest(
                    request_id=f"{call}-{choice}",
                    seed=seed,
                    choice=choice,
                    conversation=talk.messages,
                    outputs=outputs,
                    media=talk.media,
                    sampling={stage: sampling.message() for stage, sampling in settings.sampling.items()},
                    voice=settings.voice,
                    timeout_s=timeout_s,
                    options=options,
                    traceparent=traceparent,
                )
                for choice in range(choices)
            ),
        )


def _logged(request: RequestConfig) -> bool:
    return any(sampling.logprobs is not None for sampling in request.sampling.values())


def _url(value: MediaUrl | str) -> str:
    return value if isinstance(value, str) else value.url
