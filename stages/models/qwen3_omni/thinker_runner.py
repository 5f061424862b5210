"""The runner of the thinker stage: conversation and media in, text out, and the talker's payload a token at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from stages.errors import RequestRefused
from stages.events import FinishReason
from stages.messages import ChatMessage, Part, Sampling, StageRequest
from stages.models.qwen3_omni.defaults import sampling_defaults
from stages.models.qwen3_omni.encoders import FeatureCache, Features, Medium
from stages.models.qwen3_omni.logprobs import TokenReport, log_payload, reports
from stages.models.qwen3_omni.modules import Source, stage_module
from stages.models.qwen3_omni.packed_runner import PackedRunner, ends
from stages.models.qwen3_omni.packed_steps import ThinkerSteps
from stages.models.qwen3_omni.processing import Array, ModelInputs, load_processor
from stages.models.qwen3_omni.prompt import MediaRows, Prompt, media_rows
from stages.models.qwen3_omni.text import Answer, Piece
from stages.models.qwen3_omni.thinker import MediaStep, Thinker
from stages.payload import Payload, Tensor
from stages.runners.base import Emission, Output, RowResult
from stages.runners.kv_cache import StepLayout
from stages.runners.sampler import Sampler, SamplingStep
from stages.runners.sampling import DrawKey, SamplingParams
from stages.runners.tensors import array_payload, from_payload, hand_over, keep, to_payload
from stages.runners.token_list import token_list
from stages.schedulers.base import Row

# What the talker's rope needs of the prompt's media, by the name that it has in `ModelInputs` and in the payload.
PLACEMENT = ("image_grid_thw", "video_grid_thw", "video_second_per_grid", "audio_lengths")
_HEAD_CHARACTERS = 16  # for each token of the context, when a long text is judged by its beginning
# Features of 50 to 100 pictures of a megapixel at the published size.
_FEATURE_BYTES = 1 << 30


@dataclass(slots=True)
class ThinkerRequest:
    """One request: its prompt with its media, what has been generated, and what of that has been handed on.

    `encoded` are features of the first media; `rows` those of all, until the prompt is prefilled. `accepted` are hidden
    states of media tokens, for the talker. `held` are tokens that may yet be cut off. `told` are those of the prompt,
    where nothing else is wanted.
    """

    request: StageRequest
    params: SamplingParams
    key: DrawKey
    answer: Answer
    limit: int = 0
    pieces: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    inputs: ModelInputs | None = None
    prompt: Prompt | None = None
    media: list[Medium] = field(default_factory=list)
    encoded: list[Features] = field(default_factory=list)
    rows: MediaRows | None = None
    accepted: list[torch.Tensor] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    held: list[TokenReport] = field(default_factory=list)
    handed: bool = False
    told: list[int] | None = None


class ThinkerRunner(PackedRunner[ThinkerRequest]):
    """`ModelRunner` of the thinker. Its units are text tokens, the end token included."""

    _steps: ThinkerSteps

    def _load(self, config: Any, source: Source) -> int:
        module, held = stage_module("thinker", config, source)
        decoder = config.thinker_config.text_config
        self._context = int(decoder.max_position_embeddings)
        self._end_token = int(config.im_end_token_id)
        self._open_cache(decoder, source, context=self._context)
        self._sampler = Sampler(
            int(decoder.vocab_size), self._spec.max_batch, device=source.device, end_tokens=(self._end_token,)
        )
        accept_layer = int(config.talker_config.accept_hidden_layer)
        self._thinker = Thinker(module, self._cache, accept_layer=accept_layer, device=source.device)
        self._steps = ThinkerSteps(self._thinker, self._cache, self._buckets())
        self._features = FeatureCache(_FEATURE_BYTES)
        self._counts = {"encoded_media": 0, "reused_media": 0, "hidden_rows": 0}
        self._processor = load_processor(self._folder, config, dummy=source.dummy)
        self._defaults = sampling_defaults(self._folder, "thinker")
        return held

    def warm_up(self) -> None:
        with torch.inference_mode():
            self._steps.capture()
        # A request that draws, and one that does not.
        self._hello(Sampling(temperature=1.0, top_k=50, top_p=0.9))
        self._hello(Sampling(ignore_eos=True))

    def _hello(self, sampling: Sampling) -> None:
        hello = ChatMessage(role="user", parts=(Part(kind="text", text="hello"),))
        request = StageRequest(
            uid=-1, seed=0, inputs=(), consumers=(), outputs=("text",), conversation=(hello,), sampling=sampling
        )
        self.begin(request)
        self._try(-1)

    def counters(self) -> tuple[tuple[str, int], ...]:
        return (*super().counters(), *((name, count) for name, count in self._counts.items() if count))

    def _open(self, request: StageRequest) -> ThinkerRequest:
        if not request.conversation:
            raise RequestRefused("the conversation is empty: give at least one message")
        if request.consumers and all(message.role != "user" for message in request.conversation):
            # The talker speaks to what the user said; transformers fails on it too.
            raise RequestRefused("speech needs a user message, but the conversation has none")
        params = self._defaults.with_request(request.sampling, "thinker")
        params.check_tokens(self._sampler.vocabulary, "thinker")
        opened = ThinkerRequest(
            request=request,
            params=params,
            key=DrawKey(seed=request.own_seed, stage="thinker", choice=request.choice),
            answer=Answer(self._processor.codec, params.stop),
        )
        if not request.inputs:
            self._read(opened, {})
        return opened

    def _take(self, state: ThinkerRequest, payload: Payload, eos: bool) -> None:
        for tensor in payload.tensors:
            state.pieces.setdefault(tensor.name, []).append(from_payload(tensor))
        if eos:
            self._read(state, {name: torch.cat(pieces).numpy() for name, pieces in state.pieces.items()})
            state.pieces.clear()

    def _judge(self, conversation: Sequence[ChatMessage]) -> None:
        """Refuses a text that is far too long by its beginning: to tokenize megabytes would hold up everybody else."""
        head = _HEAD_CHARACTERS * self._context
        text = "".join(part.text for message in conversation for part in message.parts)
        tokens = len(self._processor.codec.encode(text[:head])) if len(text) > head else 0
        if tokens > 2 * self._context:
            message = f"the first {head} characters of the text have {tokens} tokens, the model's context is"
            raise RequestRefused(f"{message} {self._context}")

    def _read(self, state: ThinkerRequest, media: dict[str, Array]) -> None:
        self._judge(state.request.conversation)
        parts = (part for message in state.request.conversation for part in message.parts if part.kind != "text")
        missing = {part.media for part in parts} - media.keys()
        if missing:
            raise RequestRefused(f"the conversation names media that did not arrive: {', '.join(sorted(missing))}")
        if state.request.tokenize == "text":
            ((part,),) = (message.parts for message in state.request.conversation)
            state.told = self._processor.codec.encode(part.text)
            return
        inputs = self._processor.encode(state.request.conversation, media)
        if state.request.tokenize == "prompt":
            state.told = inputs.input_ids.tolist()
            return
        length = len(inputs.input_ids)
        if length >= self._context:
            raise RequestRefused(f"the prompt has {length} tokens, the model's context is {self._context}")
        state.limit = min(state.params.max_tokens, self._context - length)
        state.prompt = self._thinker.prompt(inputs)
        state.media = self._thinker.encoders.media(inputs)
        state.inputs = inputs

    def prompt_tokens(self, uid: int) -> int:
        state = self._states[uid]
        return 1 if state.told is not None else len(_prompt(state))

    def preempt(self, uids: tuple[int, ...]) -> None:
        super().preempt(uids)
        for uid in uids:
            self._states[uid].accepted.clear()

    def execute(self, rows: tuple[Row, ...]) -> tuple[RowResult, ...]:
        self._counts = dict.fromkeys(self._counts, 0)
        return super().execute(rows)

    def _prepare(self, row: Row, state: ThinkerRequest) -> RowResult | None:
        if state.told is not None:
            return token_list(state.request, state.told, self._context)
        prompt = _prompt(state)
        if state.media and state.rows is None and row.start < len(prompt) and not self._encode(state, prompt):
            return RowResult(uid=row.uid, units=0, tokens=0)
        return None

    def _encode(self, state: ThinkerRequest, prompt: Prompt) -> bool:
        """Gathers the features of the request's media; False if the towers have to run once more, in a later step.

        A step runs a tower once, so that the rows that decode wait for one medium and not for all.
        """
        for medium in state.media[len(state.encoded) :]:
            found = self._features.get(medium.key)
            if found is not None:
                self._counts["reused_media"] += 1
            elif self._counts["encoded_media"]:
                return False
            else:
                found = self._thinker.encoders.encode(medium)
                self._features.put(medium.key, found)
                self._counts["encoded_media"] += 1
            state.encoded.append(found)
        kinds = [medium.kind for medium in state.media]
        state.rows = media_rows(prompt, list(zip(kinds, state.encoded, strict=True)))
        state.encoded.clear()
        return True

    def _step(self, rows: list[Row]) -> list[RowResult]:
        last = [row for row in rows if row.units]
        layout = self._layout(rows)
        if layout.max_query == 1 and all(row.start >= len(_prompt(self._states[row.uid])) for row in rows):
            logits = self._steps.decode(*self._single(rows), layout)
        else:
            places = [end - 1 for end, row in zip(ends(rows), rows, strict=True) if row.units]
            logits = self._chunks(rows, layout, torch.tensor(places, dtype=torch.int64))
        tokens = iter(reports(self._sampler(logits, self._sampling(last))) if last else ())
        return self._results(rows, lambda row: self._result(row.uid, self._states[row.uid], next(tokens)))

    def _sampling(self, rows: Sequence[Row]) -> SamplingStep:
        places = []
        for row in rows:
            state = self._states[row.uid]
            slot = self._slots.get(row.uid)
            if slot is None:
                slot = self._slots.take(row.uid)
                prompt = _prompt(state).ids.tolist()
                self._sampler.open(slot, state.params, state.key, prompt=prompt, generated=state.generated)
            places.append((slot, len(state.generated)))
        return self._sampler.prepare(places)

    def _single(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and positions [R] of rows that feed one generated token each."""
        states = [self._states[row.uid] for row in rows]
        ids = [state.generated[row.start - len(_prompt(state))] for row, state in zip(rows, states, strict=True)]
        positions = [row.start + _prompt(state).delta for row, state in zip(rows, states, strict=True)]
        return torch.tensor(ids, dtype=torch.int64), torch.tensor(positions, dtype=torch.float32)

    def _chunks(self, rows: Sequence[Row], layout: StepLayout, last: torch.Tensor) -> torch.Tensor:
        """Logits behind the tokens at `last` of a step with parts of prompts in it."""
        states = [self._states[row.uid] for row in rows]
        parts = [_prompt(s).part(row.start, row.tokens, s.generated) for row, s in zip(rows, states, strict=True)]
        ids = torch.from_numpy(np.concatenate([ids for ids, _ in parts]))
        positions = torch.from_numpy(np.concatenate([places for _, places in parts], axis=1))
        shown: list[tuple[ThinkerRequest, torch.Tensor, MediaRows]] = []
        for row, state, end in zip(rows, states, ends(rows), strict=True):
            if state.rows is not None:
                places = _prompt(state).places
                first, after = np.searchsorted(places, (row.start, row.start + row.tokens)).tolist()
                if first < after:
                    packed = torch.from_numpy(places[first:after] + (end - row.tokens - row.start))
                    shown.append((state, packed, state.rows.part(first, after)))
        if not shown:
            logits = self._steps.prefill(ids, positions, layout, last)
        else:
            self._steps.paths.eager += 1
            media, device = MediaStep.of([(packed, part) for _, packed, part in shown]), self._device
            hidden, accepted = self._thinker.hidden_with_media(
                ids.to(device), positions.to(device), layout.to(device), media
            )
            logits = self._thinker.logits(hidden[last.to(device)])
            begin = 0
            for state, packed, _ in shown:
                if state.request.consumers and not state.handed:
                    state.accepted.append(keep(accepted[begin : begin + len(packed)], self._spec.consumers))
                    self._counts["hidden_rows"] += len(packed)
                begin += len(packed)
        for row, state in zip(rows, states, strict=True):
            if row.start + row.tokens >= len(_prompt(state)):
                state.rows = None  # the prompt is in the cache
        return logits

    def _result(self, uid: int, state: ThinkerRequest, report: TokenReport) -> RowResult:
        state.generated.append(report.token)
        state.held.append(report)
        text, told, finished, cut = self._tell(state, report.token)
        ids = [known.token for known in told]
        if cut:
            # The last token is what ends an answer, not a part of it.
            ids.append(self._end_token)
        return RowResult(
            uid=uid,
            units=1,
            finished=finished,
            emissions=self._emissions(state, ids),
            outputs=self._outputs(state, text, told),
        )

    def _tell(self, state: ThinkerRequest, token: int) -> tuple[str, list[TokenReport], FinishReason | None, bool]:
        """The text and the tokens that are certain now, whether and why the answer ends, and whether a stop string has
        cut it. Else the token that ends it is the last of the tokens."""
        ending = token == self._end_token or token in state.params.stop_token_ids
        piece = Piece(text="", tokens=0) if ending else state.answer.push(token)
        text, certain, cut = piece.text, piece.tokens, piece.stopped
        finished: FinishReason | None = "stop" if ending or cut else None
        if not cut and (ending or len(state.generated) >= state.limit):
            rest = state.answer.finish()
            text, cut = text + rest.text, rest.stopped
            certain = certain + rest.tokens if cut else len(state.held)
            finished = "stop" if ending or cut else "length"
        told, state.held = state.held[:certain], state.held[certain:]
        return text, told, finished, cut

    def _emissions(self, state: ThinkerRequest, ids: list[int]) -> tuple[Emission, ...]:
        if not (state.request.consumers and ids):
            return ()
        tensors = [array_payload("generated_ids", np.array(ids, dtype=np.int64))]
        if not state.handed:
            tensors[:0] = self._prompt_tensors(state)
            state.handed = True
        payload = Payload(tensors=tuple(tensors))
        return tuple(Emission(consumer=name, units=len(ids), payload=payload) for name in state.request.consumers)

    def _prompt_tensors(self, state: ThinkerRequest) -> list[Tensor]:
        """What the talker needs of the prompt: ids, hidden states at media positions, and where the media lie."""
        inputs, state.inputs = state.inputs, None
        if inputs is None:
            raise RuntimeError("the prompt was handed on before")
        tensors = [to_payload("prompt_ids", inputs.input_ids)]
        if state.accepted:
            tensors.append(hand_over("media_hidden", torch.cat(state.accepted)))
            state.accepted.clear()
        for name in PLACEMENT:
            if (value := getattr(inputs, name)) is not None:
                tensors.append(to_payload(name, value))
        return tensors

    def _outputs(self, state: ThinkerRequest, text: str, told: list[TokenReport]) -> tuple[Output, ...]:
        if "text" not in state.request.outputs:
            return ()
        payload = None
        if state.params.logprobs is not None:
            silent = (self._end_token, *state.params.stop_token_ids)
            shown = [report for report in told if report.token not in silent]
            payload = log_payload(shown, self._processor.codec, state.params.logprobs) if shown else None
        return (Output(modality="text", units=1, text=text, payload=payload),)


def _prompt(state: ThinkerRequest) -> Prompt:
    if state.prompt is None:
        raise RuntimeError("scheduled before its media had arrived")
    return state.prompt
