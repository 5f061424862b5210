"""The runner of the talker stage: the thinker's tokens in as they come, a frame of codes at a time out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stages.errors import RequestRefused
from stages.events import FinishReason
from stages.messages import Sampling, StageRequest
from stages.models.qwen3_omni.defaults import CODE_PREDICTOR, sampling_defaults
from stages.models.qwen3_omni.modules import Source, stage_module, thinker_embedding
from stages.models.qwen3_omni.packed_runner import PackedRunner, ends
from stages.models.qwen3_omni.packed_steps import TalkerSteps
from stages.models.qwen3_omni.talker import Frames, Talker
from stages.models.qwen3_omni.talker_prompt import SpokenText, TalkerInputs, TalkerPrompt
from stages.payload import Payload
from stages.runners.base import Emission, RowResult
from stages.runners.sampler import Sampler, SamplingStep
from stages.runners.sampling import DrawKey, SamplingParams, uniforms
from stages.runners.tensors import array_payload, read_all, to_payload
from stages.schedulers.base import Row

# Rows of the embedding table that are projected at once: bounds the memory that loading takes on top of the table.
_PROJECTED_ROWS = 16384
# transformers suppresses the top of the codec vocabulary, which holds no codes.
_SPECIAL_CODES = 1024
_DEFAULT_SPEAKER = "ethan"


@dataclass(slots=True)
class TalkerRequest:
    """One request: what has come from the thinker, the first code of each frame so far, and the whole frames.

    `size` is the prompt's length, `prompt` the prompt until it is prefilled; `hidden` is the last hidden state while
    the request has no slot. `ahead` are the numbers that the next frame's residual codes are drawn with.
    """

    request: StageRequest
    speaker: int
    params: SamplingParams
    key: DrawKey
    inputs: TalkerInputs | None = None
    text: SpokenText = field(default_factory=SpokenText)
    size: int = 0
    limit: int = 0
    delta: float = 0.0
    prompt: TalkerPrompt | None = None
    tokens: list[int] = field(default_factory=list)
    frames: list[list[int]] = field(default_factory=list)
    hidden: torch.Tensor | None = None
    ahead: npt.NDArray[np.float64] | None = None


class TalkerRunner(PackedRunner[TalkerRequest]):
    """`ModelRunner` of the talker. Its units are its own tokens; the last of them yields no frame."""

    _steps: TalkerSteps

    def _load(self, config: Any, source: Source) -> int:
        module, held = stage_module("talker", config, source)
        embedding = thinker_embedding(config, source)
        with torch.inference_mode():
            table = torch.cat([module.text_projection(rows) for rows in embedding.split(_PROJECTED_ROWS)])
        decoder = config.talker_config.text_config
        self._config = config
        self._end_code = int(config.talker_config.codec_eos_token_id)
        self._context = int(decoder.max_position_embeddings)
        self._open_cache(decoder, source, context=self._context)
        slots, codes = self._spec.max_batch, int(decoder.vocab_size)
        self._sampler = Sampler(
            codes,
            slots + 1,
            device=source.device,
            suppressed=[code for code in range(codes - _SPECIAL_CODES, codes) if code != self._end_code],
            end_tokens=(self._end_code,),
        )
        self._talker = Talker(module, table, self._cache, config, slots=slots, predictor=CODE_PREDICTOR)
        self._steps = TalkerSteps(self._talker, self._sampler, self._cache, self._buckets(), spare=slots)
        self._defaults = sampling_defaults(self._folder, "talker")
        return held + int(table.numel() * table.element_size())

    def warm_up(self) -> None:
        config = self._config
        prompt = [config.im_start_token_id, config.user_token_id, config.im_end_token_id]
        header = [config.im_start_token_id, config.assistant_token_id, config.im_end_token_id]
        sampling = Sampling(max_tokens=9, ignore_eos=True)
        self.begin(StageRequest(uid=-1, seed=0, inputs=("thinker",), consumers=(), outputs=(), sampling=sampling))
        ids = torch.tensor(prompt + header), torch.tensor([config.im_end_token_id] * 3)
        tensors = (to_payload("prompt_ids", ids[0]), to_payload("generated_ids", ids[1]))
        self.feed(-1, "thinker", Payload(tensors=tensors), True)
        with torch.inference_mode():
            self._steps.capture()
        self._try(-1)

    def _open(self, request: StageRequest) -> TalkerRequest:
        params = self._defaults.with_request(request.sampling, "talker")
        params.check_tokens(self._sampler.vocabulary, "talker")
        for name in ("stop", "logprobs"):
            if getattr(params, name) not in ((), None):
                raise RequestRefused(f"request.sampling.talker.{name} cannot act: the talker writes no text")
        return TalkerRequest(
            request=request,
            speaker=self._speaker(request.voice),
            params=params,
            key=DrawKey(seed=request.own_seed, stage="talker", choice=request.choice),
        )

    def _speaker(self, voice: str | None) -> int:
        """The codec token of a speaker, by a name in any case; without one transformers' default, else the first."""
        named = {name.lower(): token for name, token in (self._config.talker_config.speaker_id or {}).items()}
        if not named:
            raise RequestRefused("this checkpoint has no speakers: talker_config.speaker_id is empty")
        if voice is None:
            return int(named.get(_DEFAULT_SPEAKER, next(iter(named.values()))))
        if voice.lower() not in named:
            raise RequestRefused(f"request.voice={voice!r}: unknown; this checkpoint has {', '.join(named)}")
        return int(named[voice.lower()])

    def _take(self, state: TalkerRequest, payload: Payload, eos: bool) -> None:
        tensors = read_all(payload)
        generated = tensors.pop("generated_ids", None)
        if tensors:
            state.inputs = TalkerInputs(**tensors)
            state.size = self._talker.prompts.size(state.inputs)
            state.limit = min(state.params.max_tokens, self._context - state.size)
        if generated is not None:
            state.text.tokens += generated.tolist()
        state.text.ended = eos

    def prompt_tokens(self, uid: int) -> int:
        state = self._states[uid]
        if state.size >= self._context:
            raise RequestRefused(
                f"the talker's prompt has {state.size} tokens, its context is {self._context}: shorten the "
                "user messages or ask for text only"
            )
        return state.size

    def preempt(self, uids: tuple[int, ...]) -> None:
        for uid in uids:
            state, slot = self._states[uid], self._slots.get(uid)
            state.prompt = None
            if slot is not None:
                state.hidden = self._talker.last(slot)
        super().preempt(uids)

    def _enter(self, uid: int, state: TalkerRequest) -> int:
        """The request's slot, which is taken with the first row that draws."""
        slot = self._slots.get(uid)
        if slot is None:
            slot = self._slots.take(uid)
            self._sampler.open(slot, state.params, state.key, generated=state.tokens)
            if state.hidden is not None:
                self._talker.restore(slot, state.hidden)
                state.hidden = None
        return slot

    def _prepare(self, row: Row, state: TalkerRequest) -> RowResult | None:
        if state.inputs is None or not state.text.tokens:
            raise RuntimeError("scheduled before the first text token")
        if state.text.ended and state.text.tokens == [self._config.im_end_token_id]:
            return self._result(row.uid, state, [], units=0, finished="empty")
        if row.start < state.size and state.prompt is None:
            state.prompt = self._talker.prompts.build(state.inputs, state.text.tokens[0], state.speaker)
            state.delta = state.prompt.delta
        return None

    def _step(self, rows: list[Row]) -> list[RowResult]:
        """Rows that go on by a frame in one call, those with parts of prompts in another."""
        single = [row for row in rows if row.tokens == 1 and row.units and self._states[row.uid].tokens]
        others = [row for row in rows if row not in single]
        found = [*(self._decode(single) if single else ()), *(self._prefill(others) if others else ())]
        results = {result.uid: result for result in found}
        return [results[row.uid] for row in rows]

    def _decode(self, rows: Sequence[Row]) -> list[RowResult]:
        positions = torch.tensor([row.start + self._states[row.uid].delta for row in rows], dtype=torch.float32)
        tokens, codes = self._steps.decode(self._frames(rows), positions, self._layout(rows), self._sampling(rows))
        return self._told(rows, rows, self._read(rows, tokens, codes), len(rows))

    def _prefill(self, rows: Sequence[Row]) -> list[RowResult]:
        last = [row for row in rows if row.units]
        going_on = [row for row in last if self._states[row.uid].tokens]
        # Frames of requests that had lost their KV blocks.
        embeds, codes = self._talker.complete(self._frames(going_on).to(self._device)) if going_on else (None, None)
        packed, positions = self._chunks(rows, going_on, embeds)
        places = [end - 1 for end, row in zip(ends(rows), rows, strict=True) if row.units]
        slots = [self._enter(row.uid, self._states[row.uid]) for row in last]
        logits = self._steps.prefill(
            packed,
            positions,
            self._layout(rows),
            torch.tensor(places, dtype=torch.int64),
            torch.tensor(slots, dtype=torch.int64),
        )
        values = self._read(last, self._sampler(logits, self._sampling(last)).tokens, codes) if last else []
        return self._told(rows, going_on, values, len(last))

    def _sampling(self, rows: Sequence[Row]) -> SamplingStep:
        states = [self._states[row.uid] for row in rows]
        return self._sampler.prepare(
            [(self._enter(row.uid, state), len(state.tokens)) for row, state in zip(rows, states, strict=True)]
        )

    def _frames(self, rows: Sequence[Row]) -> Frames:
        """On the CPU."""
        states = [self._states[row.uid] for row in rows]
        greedy = [state.params.temperature == 0 for state in states]
        numbers = None
        if not all(greedy):
            ahead = [state.ahead for state in states if state.ahead is not None]
            numbers = torch.from_numpy(np.stack(ahead))
        slots = [self._enter(row.uid, state) for row, state in zip(rows, states, strict=True)]
        return Frames(
            first=torch.tensor([state.tokens[-1] for state in states]),
            text=torch.tensor([self._spoken(state, len(state.tokens)) for state in states]),
            slots=torch.tensor(slots),
            numbers=numbers,
            greedy=torch.tensor(greedy) if any(greedy) and numbers is not None else None,
        )

    def _spoken(self, state: TalkerRequest, step: int) -> int:
        return state.text.at(step, end=self._config.tts_eos_token_id, pad=self._config.tts_pad_token_id)

    def _chunks(
        self, rows: Sequence[Row], going_on: Sequence[Row], completed: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs [T, hidden] of a step with parts of prompts, or of what was generated before a preemption, and their
        positions [3, T] on the CPU.

        `completed` are the inputs of frames that this step completes, the last ones of the rows `going_on`.
        """
        of_row = {row.uid: index for index, row in enumerate(going_on)}
        pieces, positions = [], []
        for row in rows:
            state = self._states[row.uid]
            end, index = row.start + row.tokens, of_row.get(row.uid)
            if state.prompt is not None and row.start < state.size:
                pieces.append(state.prompt.embeds[row.start : end])
                positions.append(state.prompt.positions[:, row.start : end])
            begin = max(row.start, state.size)
            if begin < end:
                later = np.arange(begin, end, dtype=np.float32) + np.float32(state.delta)
                positions.append(np.broadcast_to(later, (3, end - begin)))
                whole = range(begin - state.size, end - state.size - (index is not None))
                if whole:
                    codes = torch.tensor([state.frames[frame] for frame in whole]).to(self._device)
                    text = torch.tensor([self._spoken(state, frame + 1) for frame in whole]).to(self._device)
                    pieces.append(self._talker.frames(codes, text))
                if index is not None and completed is not None:
                    pieces.append(completed[index : index + 1])
            if end >= state.size:
                state.prompt = None  # it is in the cache
        return torch.cat(pieces), torch.from_numpy(np.concatenate(positions, axis=1))

    def _draw_ahead(self, rows: Sequence[Row]) -> None:
        """The numbers of the frames that begin with the tokens of this step: there is time while the device works."""
        states = [self._states[row.uid] for row in rows]
        draws = [(state.key, len(state.tokens)) for state in states]
        for state, numbers in zip(states, uniforms(draws, range(1, self._talker.predictor.groups)), strict=True):
            state.ahead = numbers

    def _read(self, last: Sequence[Row], tokens: torch.Tensor, codes: torch.Tensor | None) -> list[int]:
        """The drawn tokens and then the residual codes, row by row: one copy from the device."""
        found = tokens if codes is None else torch.cat((tokens, codes.flatten()))
        self._draw_ahead(last)
        values: list[int] = found.tolist()
        return values

    def _told(self, rows: Sequence[Row], going_on: Sequence[Row], values: list[int], drawn: int) -> list[RowResult]:
        tokens = iter(values[:drawn])
        residual = self._talker.predictor.groups - 1
        begins = {row.uid: drawn + index * residual for index, row in enumerate(going_on)}

        def result(row: Row) -> RowResult:
            state, begin, token = self._states[row.uid], begins.get(row.uid), next(tokens)
            frames = [] if begin is None else [[state.tokens[-1], *values[begin : begin + residual]]]
            state.frames += frames
            state.tokens.append(token)
            return self._result(row.uid, state, frames, units=1, finished=self._finished(state))

        return self._results(rows, result)

    def _finished(self, state: TalkerRequest) -> FinishReason | None:
        ended = state.tokens[-1] in (self._end_code, *state.params.stop_token_ids)
        if not ended and len(state.tokens) < state.limit:
            return None
        if len(state.tokens) == 1:
            return "empty"
        return "stop" if ended else "length"

    def _result(
        self,
        uid: int,
        state: TalkerRequest,
        frames: list[list[int]],
        *,
        units: int,
        finished: FinishReason | None,
    ) -> RowResult:
        """Frames go on as they come; the message that ends the stream says why, for the stage that ends the audio."""
        emissions: tuple[Emission, ...] = ()
        if frames or finished:
            codes = np.array(frames, dtype=np.int32).reshape(len(frames), self._talker.predictor.groups)
            payload = Payload(
                tensors=(array_payload("codes", codes),),
                meta=(("finish_reason", finished),) if finished else (),
            )
            emissions = tuple(
                Emission(consumer=consumer, units=len(frames), payload=payload) for consumer in state.request.consumers
            )
        return RowResult(uid=uid, units=units, finished=finished, emissions=emissions)
