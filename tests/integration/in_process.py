"""Drives the three Qwen3-Omni stages in one process: real schedulers, real runners, payloads as bytes, no transport.

Every request of a call is in flight at once, and each stage takes a step in turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from stages.config import ModelSpec, StageSpec
from stages.connectors.gather import gather
from stages.errors import ErrorInfo, RequestRefused, describe
from stages.messages import ChatMessage, Part, Sampling, StageRequest
from stages.models.registry import build_runner, contract
from stages.payload import Payload, view
from stages.runners.base import RowResult
from stages.runners.tensors import from_payload, to_payload
from stages.schedulers.base import RowProgress
from stages.schedulers.registry import create_scheduler

STAGES = ("thinker", "talker", "code2wav")


@dataclass(kw_only=True)
class Asked:
    """One request. `conversation` is (role, parts); a part is a text or (kind, array, frames a second)."""

    conversation: list[tuple[str, list[str | tuple[str, np.ndarray, float]]]]
    thinker: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))
    talker: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))
    voice: str | None = None
    seed: int = 0
    modalities: tuple[str, ...] = ("text", "audio")


@dataclass(kw_only=True)
class Answered:
    """What came out: `codes` [groups, frames], `waveform` [samples], why each stage ended, or the error."""

    text: str = ""
    text_ids: list[int] = field(default_factory=list)
    codes: torch.Tensor | None = None
    waveform: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    reasons: dict[str, str] = field(default_factory=dict)
    error: ErrorInfo | None = None


class Pipeline:
    """Thinker, talker and code2wav of one checkpoint, loaded. `decode` is code2wav's: `transformers` is bitwise."""

    def __init__(
        self, folder: Path, *, max_batch: int = 4, load_format: str = "auto", decode: str = "transformers"
    ) -> None:
        declared = contract("qwen3_omni").stages
        self.runners = {}
        self._schedulers = {}
        for name in STAGES:
            tuning = declared[name].tuning
            if tuning.decode is not None:
                tuning = replace(tuning, decode=decode)
            spec = StageSpec(
                run_id="test", family="qwen3_omni", stage=name, replica=0, generation=0,
                execution_type=declared[name].execution_type,
                model=ModelSpec(path=str(folder), load_format=load_format, dtype="float32"),
                devices=(), max_batch=max_batch, memory_fraction=0.3, threads=1, inputs=(), consumers=(), outputs=(),
                tuning=tuning,
            )  # fmt: skip
            self.runners[name] = build_runner(spec)
            self.runners[name].load()
            self.runners[name].warm_up()
            self._schedulers[name] = create_scheduler(
                spec.execution_type, max_batch, declared[name].max_units_a_row, tuning=tuning
            )

    def run(self, asked: Sequence[Asked]) -> list[Answered]:
        answers = [Answered() for _ in asked]
        emitted: dict[tuple[int, str], list[tuple[int, Payload]]] = {}
        waves: dict[int, list[torch.Tensor]] = {}
        for uid, request in enumerate(asked):
            self._submit(uid, request, answers[uid])
        while any(self._schedulers.values()):
            for name in STAGES:
                if step := self._schedulers[name].schedule({}, frozenset()):
                    for result in self.runners[name].execute(step.rows):
                        self._settle(name, result, answers[result.uid], emitted, waves)
        for uid, pieces in waves.items():
            answers[uid].waveform = torch.cat(pieces)
        return answers

    def _submit(self, uid: int, request: Asked, answer: Answered) -> None:
        media: dict[str, np.ndarray] = {}
        conversation = []
        for role, parts in request.conversation:
            built = []
            for part in parts:
                if isinstance(part, str):
                    built.append(Part(kind="text", text=part))
                else:
                    name = f"media{len(media)}"
                    media[name] = part[1]
                    built.append(Part(kind=part[0], media=name, fps=part[2]))
            conversation.append(ChatMessage(role=role, parts=tuple(built)))
        speech = "audio" in request.modalities
        text = ("text",) if "text" in request.modalities else ()
        common = {"uid": uid, "seed": request.seed, "voice": request.voice}
        thinker = StageRequest(
            **common, inputs=("request",) if media else (), consumers=("talker",) if speech else (), outputs=text,
            sampling=request.thinker, conversation=tuple(conversation),
        )  # fmt: skip
        talker = StageRequest(
            **common, inputs=("thinker",), consumers=("code2wav",), outputs=(), sampling=request.talker
        )
        code2wav = StageRequest(**common, inputs=("talker",), consumers=(), outputs=("audio",))
        requests = {"thinker": thinker, **({"talker": talker, "code2wav": code2wav} if speech else {})}
        try:
            for name, staged in requests.items():
                self.runners[name].begin(staged)
                self._schedulers[name].add(staged, dict.fromkeys(staged.inputs, "complete"))
            if media:
                tensors = tuple(to_payload(name, torch.from_numpy(array)) for name, array in media.items())
                self._feed(uid, "thinker", "request", [(1, Payload(tensors=tensors))])
        except RequestRefused as error:
            self._drop(uid, answer, describe(error, "thinker"))

    def _feed(self, uid: int, name: str, producer: str, pieces: list[tuple[int, Payload]]) -> None:
        """One message with all pieces; its bytes are overwritten once it is read, as a ring's would be."""
        gathered = gather([payload for _, payload in pieces])
        data = bytearray(gathered.nbytes)
        for offset, chunk in gathered.chunks:
            data[offset : offset + len(chunk)] = chunk
        self.runners[name].feed(uid, producer, view(gathered.tensors, gathered.meta, memoryview(data)), True)
        data[:] = b"\xa5" * len(data)
        self._schedulers[name].extend(uid, producer, sum(units for units, _ in pieces), True)

    def _settle(
        self,
        name: str,
        result: RowResult,
        answer: Answered,
        emitted: dict[tuple[int, str], list[tuple[int, Payload]]],
        waves: dict[int, list[torch.Tensor]],
    ) -> None:
        uid = result.uid
        if result.error is not None:
            self._drop(uid, answer, result.error)
            return
        self._schedulers[name].update((RowProgress(uid=uid, units=result.units, finished=result.finished),))
        for emission in result.emissions:
            emitted.setdefault((uid, name), []).append((emission.units, emission.payload))
            for tensor in emission.payload.tensors:
                if tensor.name == "generated_ids":
                    answer.text_ids += from_payload(tensor).tolist()
        for output in result.outputs:
            answer.text += output.text
            if output.payload is not None:
                assert output.payload.scalar("sample_rate_hz") == 24000
                waves.setdefault(uid, []).append(from_payload(output.payload.tensor("audio")))
        if result.finished is None:
            return
        answer.reasons[name] = result.finished
        self.runners[name].end(uid)
        if pieces := emitted.pop((uid, name), []):
            if name == "talker":
                answer.codes = torch.cat([from_payload(p.tensor("codes")) for _, p in pieces]).T
            self._feed(uid, STAGES[STAGES.index(name) + 1], name, pieces)

    def _drop(self, uid: int, answer: Answered, error: ErrorInfo) -> None:
        answer.error = error
        for name in STAGES:
            self.runners[name].end(uid)
            if uid in self._schedulers[name]:
                self._schedulers[name].abort(uid)
