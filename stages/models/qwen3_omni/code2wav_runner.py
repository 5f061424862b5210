"""The runner of the code2wav stage: frames of codes in, a waveform out, 300 frames a step."""

from dataclasses import dataclass, field
from typing import Any, cast

import torch

from stages.events import FinishReason
from stages.messages import StageRequest
from stages.models.qwen3_omni.code2wav import Code2Wav
from stages.models.qwen3_omni.contract import SAMPLE_RATE_HZ
from stages.models.qwen3_omni.modules import Source, code2wav_module
from stages.models.qwen3_omni.runner import StageRunner
from stages.payload import Payload
from stages.runners.base import Output, RowResult
from stages.runners.tensors import from_payload, to_payload


@dataclass(slots=True)
class Code2WavRequest:
    """One request: its codes [frames, groups] once they have all arrived, and how many frames are decoded."""

    request: StageRequest
    pieces: list[torch.Tensor] = field(default_factory=list)
    codes: torch.Tensor | None = None
    reason: FinishReason = "stop"
    done: int = 0


class Code2WavRunner(StageRunner[Code2WavRequest]):
    """`ModelRunner` of code2wav. Its units are frames."""

    def _load(self, config: Any, source: Source) -> int:
        module, held = code2wav_module(config, source)
        self._code2wav = Code2Wav(module, device=source.device)
        self._groups = int(config.code2wav_config.num_quantizers)
        return held

    def warm_up(self) -> None:
        self._code2wav.chunk(torch.zeros(2, self._groups, dtype=torch.int32), 0)

    def _open(self, request: StageRequest) -> Code2WavRequest:
        return Code2WavRequest(request=request)

    def _take(self, state: Code2WavRequest, payload: Payload, eos: bool) -> None:
        state.pieces.append(from_payload(payload.tensor("codes")))
        if eos:
            state.codes = torch.cat(state.pieces)
            state.reason = cast("FinishReason", payload.scalar("finish_reason"))
            state.pieces.clear()

    def _advance(self, uid: int, state: Code2WavRequest) -> RowResult:
        if state.codes is None:
            raise RuntimeError("scheduled before the talker's frames were complete")
        if not len(state.codes):
            return RowResult(uid=uid, units=0, finished="empty")
        wave, end = self._code2wav.chunk(state.codes, state.done)
        units, state.done = end - state.done, end
        payload = Payload(tensors=(to_payload("audio", wave),), meta=(("sample_rate_hz", SAMPLE_RATE_HZ),))
        return RowResult(
            uid=uid,
            units=units,
            finished=state.reason if end == len(state.codes) else None,
            outputs=(Output(modality="audio", units=units, payload=payload),),
        )
