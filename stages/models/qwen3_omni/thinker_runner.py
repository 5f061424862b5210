"""The runner of the thinker stage: conversation and media in, text out, and the talker's payload a token at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stages.errors import RequestRefused
from stages.events import FinishReason
from stages.messages import ChatMessage, Part, StageRequest
from stages.models.qwen3_omni.defaults import sampling_defaults
from stages.models.qwen3_omni.modules import Source, thinker_module
from stages.models.qwen3_omni.processing import Array, ModelInputs, load_processor
from stages.models.qwen3_omni.runner import StageRunner
from stages.models.qwen3_omni.text import TextDecoder
from stages.models.qwen3_omni.thinker import Prefill, Thinker, ThinkerState
from stages.payload import Payload, Tensor
from stages.runners.base import Emission, Output, RowResult
from stages.runners.sampling import DrawKey, Sampler, SamplingParams
from stages.runners.tensors import from_payload, to_payload

# What the talker's rope needs of the prompt's media, by the name that it has in `ModelInputs` and in the payload.
PLACEMENT = ("image_grid_thw", "video_grid_thw", "video_second_per_grid", "audio_lengths")


@dataclass(slots=True)
class ThinkerRequest:
    """One request: its prompt, what has been generated, and where the model stands once it is prefilled."""

    request: StageRequest
    params: SamplingParams
    sampler: Sampler
    text: TextDecoder
    limit: int = 0
    media: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    inputs: ModelInputs | None = None
    prompt: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    state: ThinkerState | None = None


class ThinkerRunner(StageRunner[ThinkerRequest]):
    """`ModelRunner` of the thinker. Its units are text tokens, the end token included."""

    def _load(self, config: Any, source: Source) -> int:
        module, held = thinker_module(config, source)
        self._thinker = Thinker(module, accept_layer=config.talker_config.accept_hidden_layer, device=source.device)
        self._device = source.device
        self._processor = load_processor(self._folder, config, dummy=source.dummy)
        self._defaults = sampling_defaults(self._folder, "thinker")
        self._end_token = int(config.im_end_token_id)
        self._context = int(config.thinker_config.text_config.max_position_embeddings)
        return held

    def warm_up(self) -> None:
        hello = ChatMessage(role="user", parts=(Part(kind="text", text="hello"),))
        done = self._thinker.prefill(self._processor.encode((hello,), {}))
        self._thinker.decode(self._end_token, done.state)

    def _open(self, request: StageRequest) -> ThinkerRequest:
        if not request.conversation:
            raise RequestRefused("the conversation is empty: give at least one message")
        if request.consumers and all(message.role != "user" for message in request.conversation):
            # The talker speaks to what the user said; transformers fails on it too.
            raise RequestRefused("speech needs a user message, but the conversation has none")
        params = self._defaults.with_request(request.sampling, "thinker")
        seed = request.sampling.seed if request.sampling.seed is not None else request.seed
        opened = ThinkerRequest(
            request=request,
            params=params,
            sampler=Sampler(
                params,
                DrawKey(seed=seed, stage="thinker", choice=request.choice),
                device=self._device,
                end_tokens=(self._end_token,),
            ),
            text=TextDecoder(self._processor.codec),
        )
        if not request.inputs:
            self._encode(opened, {})
        return opened

    def _take(self, state: ThinkerRequest, payload: Payload, eos: bool) -> None:
        for tensor in payload.tensors:
            state.media.setdefault(tensor.name, []).append(from_payload(tensor))
        if eos:
            self._encode(state, {name: torch.cat(pieces).numpy() for name, pieces in state.media.items()})
            state.media.clear()

    def _encode(self, state: ThinkerRequest, media: dict[str, Array]) -> None:
        missing = _media_names(state.request.conversation) - media.keys()
        if missing:
            raise RequestRefused(f"the conversation names media that did not arrive: {', '.join(sorted(missing))}")
        inputs = self._processor.encode(state.request.conversation, media)
        length = len(inputs.input_ids)
        if length >= self._context:
            raise RequestRefused(f"the prompt has {length} tokens, the model's context is {self._context}")
        state.limit = min(state.params.max_tokens, self._context - length)
        state.prompt = inputs.input_ids.tolist()
        state.inputs = inputs

    def _advance(self, uid: int, state: ThinkerRequest) -> RowResult:
        handed: list[Tensor] = []
        if state.state is None:
            if state.inputs is None:
                raise RuntimeError("scheduled before its media had arrived")
            done = self._thinker.prefill(state.inputs)
            logits, state.state = done.logits, done.state
            if state.request.consumers:
                handed = _prompt_tensors(state.inputs, done)
            state.inputs = None
        else:
            logits = self._thinker.decode(state.generated[-1], state.state)
        token = state.sampler(logits, (*state.prompt, *state.generated), len(state.generated))
        state.generated.append(token)
        finished = self._finished(state)
        piece = state.text.push(token) + (state.text.finish() if finished else "")
        ids = to_payload("generated_ids", torch.tensor([token]))
        return RowResult(
            uid=uid,
            units=1,
            finished=finished,
            emissions=tuple(
                Emission(consumer=consumer, units=1, payload=Payload(tensors=(*handed, ids)))
                for consumer in state.request.consumers
            ),
            outputs=(Output(modality="text", units=1, text=piece),) if "text" in state.request.outputs else (),
        )

    def _finished(self, state: ThinkerRequest) -> FinishReason | None:
        if state.generated[-1] == self._end_token:
            return "stop"
        return "length" if len(state.generated) >= state.limit else None


def _media_names(conversation: Sequence[ChatMessage]) -> set[str]:
    return {part.media for message in conversation for part in message.parts if part.kind != "text"}


def _prompt_tensors(inputs: ModelInputs, done: Prefill) -> list[Tensor]:
    """What the talker needs of the prompt: ids, hidden states at media positions, and where the media lie."""
    tensors = [to_payload("prompt_ids", inputs.input_ids)]
    if len(done.media_hidden):
        tensors.append(to_payload("media_hidden", done.media_hidden))
    for name in PLACEMENT:
        if (value := getattr(inputs, name)) is not None:
            tensors.append(to_payload(name, value))
    return tensors
