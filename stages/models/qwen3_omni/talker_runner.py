"""The runner of the talker stage: the thinker's payload in, a frame of codes at a time out."""

from dataclasses import dataclass, field
from typing import Any

import torch

from stages.errors import RequestRefused
from stages.events import FinishReason
from stages.messages import StageRequest
from stages.models.qwen3_omni.defaults import CODE_PREDICTOR, GREEDY, sampling_defaults
from stages.models.qwen3_omni.modules import Source, talker_module, thinker_embedding
from stages.models.qwen3_omni.runner import StageRunner
from stages.models.qwen3_omni.talker import Talker, TalkerInputs, TalkerState
from stages.payload import Payload
from stages.runners.base import Emission, RowResult
from stages.runners.sampling import DrawKey, Sampler, SamplingParams
from stages.runners.tensors import read_all, to_payload

# Rows of the embedding table that are projected at once: bounds the memory that loading takes on top of the table.
_PROJECTED_ROWS = 16384
# transformers suppresses the top of the codec vocabulary, which holds no codes.
_SPECIAL_CODES = 1024
_DEFAULT_SPEAKER = "ethan"


@dataclass(slots=True)
class TalkerRequest:
    """One request: what came from the thinker, the first code of each frame so far, and where the model stands."""

    request: StageRequest
    speaker: int
    params: SamplingParams
    sampler: Sampler
    predictor: Sampler
    pieces: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    inputs: TalkerInputs | None = None
    tokens: list[int] = field(default_factory=list)
    limit: int = 0
    state: TalkerState | None = None


class TalkerRunner(StageRunner[TalkerRequest]):
    """`ModelRunner` of the talker. Its units are its own tokens; the last of them yields no frame."""

    def _load(self, config: Any, source: Source) -> int:
        module, held = talker_module(config, source)
        embedding = thinker_embedding(config, source)
        with torch.inference_mode():
            table = torch.cat([module.text_projection(rows) for rows in embedding.split(_PROJECTED_ROWS)])
        self._talker = Talker(module, table, config, device=source.device)
        self._device = source.device
        self._config = config
        self._defaults = sampling_defaults(self._folder, "talker")
        self._context = int(config.talker_config.text_config.max_position_embeddings)
        return held + int(table.numel() * table.element_size())

    def warm_up(self) -> None:
        config = self._config
        prompt = [config.im_start_token_id, config.user_token_id, config.im_end_token_id]
        header = [config.im_start_token_id, config.assistant_token_id, config.im_end_token_id]
        inputs = TalkerInputs(
            prompt_ids=torch.tensor(prompt + header), generated_ids=torch.tensor([config.im_end_token_id] * 2)
        )
        state = self._talker.start(inputs, next(iter(config.talker_config.speaker_id.values())))
        self._talker.prefill(state)
        self._talker.frame(0, state, lambda _logits, _group: 0)

    def _open(self, request: StageRequest) -> TalkerRequest:
        params = self._defaults.with_request(request.sampling, "talker")
        seed = request.sampling.seed if request.sampling.seed is not None else request.seed
        key = DrawKey(seed=seed, stage="talker", choice=request.choice)
        talker = self._config.talker_config
        codes = talker.text_config.vocab_size
        suppressed = [code for code in range(codes - _SPECIAL_CODES, codes) if code != talker.codec_eos_token_id]
        return TalkerRequest(
            request=request,
            speaker=self._speaker(request.voice),
            params=params,
            sampler=Sampler(
                params,
                key,
                device=self._device,
                suppressed=suppressed,
                end_tokens=(talker.codec_eos_token_id,),
            ),
            # As in transformers: a greedy talker makes the predictor greedy, a sampled one has it sample its own way.
            predictor=Sampler(GREEDY if params.temperature == 0 else CODE_PREDICTOR, key, device=self._device),
        )

    def _speaker(self, voice: str | None) -> int:
        speakers: dict[str, int] = self._config.talker_config.speaker_id
        if voice is None:
            return speakers.get(_DEFAULT_SPEAKER, next(iter(speakers.values())))
        if voice.lower() not in speakers:
            raise RequestRefused(f"request.voice={voice!r}: unknown; this checkpoint has {', '.join(speakers)}")
        return speakers[voice.lower()]

    def _take(self, state: TalkerRequest, payload: Payload, eos: bool) -> None:
        for name, tensor in read_all(payload).items():
            state.pieces.setdefault(name, []).append(tensor)
        if eos:
            state.inputs = TalkerInputs(**{name: torch.cat(pieces) for name, pieces in state.pieces.items()})
            state.pieces.clear()

    def _advance(self, uid: int, state: TalkerRequest) -> RowResult:
        frames = torch.empty(0, self._talker.code_groups, dtype=torch.int32)
        if state.state is None:
            if state.inputs is None:
                raise RuntimeError("scheduled before the thinker's answer was complete")
            if state.inputs.generated_ids.tolist() == [self._config.im_end_token_id]:
                return self._result(uid, state, frames, units=0, finished="empty")
            state.state = self._start(state, state.inputs)
            state.inputs = None
            logits = self._talker.prefill(state.state)
        else:
            position = len(state.tokens) - 1
            codes, logits = self._talker.frame(
                state.tokens[-1],
                state.state,
                lambda scores, group: state.predictor(scores, (), position, group),
            )
            frames = codes[None]
        state.tokens.append(state.sampler(logits, state.tokens, len(state.tokens)))
        return self._result(uid, state, frames, units=1, finished=self._finished(state))

    def _start(self, state: TalkerRequest, inputs: TalkerInputs) -> TalkerState:
        started: TalkerState = self._talker.start(inputs, state.speaker)
        if started.length >= self._context:
            raise RequestRefused(
                f"the talker's prompt has {started.length} tokens, its context is {self._context}: shorten the "
                "user messages or ask for text only"
            )
        state.limit = min(state.params.max_tokens, self._context - started.length)
        return started

    def _finished(self, state: TalkerRequest) -> FinishReason | None:
        ended = state.tokens[-1] == self._config.talker_config.codec_eos_token_id
        if not ended and len(state.tokens) < state.limit:
            return None
        if len(state.tokens) == 1:
            return "empty"
        return "stop" if ended else "length"

    def _result(
        self, uid: int, state: TalkerRequest, frames: torch.Tensor, *, units: int, finished: FinishReason | None
    ) -> RowResult:
        """Frames go on as they come; the message that ends the stream says why, for the stage that ends the audio."""
        emissions: tuple[Emission, ...] = ()
        if len(frames) or finished:
            payload = Payload(
                tensors=(to_payload("codes", frames),),
                meta=(("finish_reason", finished),) if finished else (),
            )
            emissions = tuple(
                Emission(consumer=consumer, units=len(frames), payload=payload) for consumer in state.request.consumers
            )
        return RowResult(uid=uid, units=units, finished=finished, emissions=emissions)
