"""Drives the three Qwen3-Omni stages in one process: real schedulers, real runners, payloads as bytes, no transport.

Every request of a call is in flight at once, and each stage takes a step in turn. Edges are complete or incremental,
as in a worker.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from stages.config import EdgeMode, ModelSpec, StageSpec
from stages.connectors.gather import gather
from stages.errors import ErrorInfo, RequestRefused, describe
from stages.messages import ChatMessage, Part, Sampling, StageRequest
from stages.models.registry import build_runner, contract
from stages.payload import Payload, view
from stages.runners.base import RowResult
from stages.runners.tensors import from_payload, to_payload
from stages.schedulers.base import Row, RowProgress
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
    logs: list[dict[str, torch.Tensor]] = field(default_factory=list)
    error: ErrorInfo | None = None


# Code2wav as transformers decodes: bit by bit.
BITWISE: Mapping[str, Mapping[str, object]] = {"code2wav": {"decode": "transformers"}}
COMPLETE: Mapping[str, EdgeMode] = {"request": "complete", "thinker": "complete", "talker": "complete"}
NOTHING: Mapping[str, int] = {}
NO_ONE: Mapping[int, int] = {}


class Pipeline:
    """Thinker, talker and code2wav of one checkpoint, loaded.

    `tuning` changes the contract's tuning, by stage; `modes` says by producer how its edge is carried; `kv_blocks`
    makes the KV cache of a stage smaller than it is. `log` has what happened in the last run, in order: (stage, uid)
    for each row, ("audio", uid) for each piece of audio; `steps` has the steps' rows by stage, `preempted` counts.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_batch: int = 4,
        load_format: str = "auto",
        tuning: Mapping[str, Mapping[str, object]] = BITWISE,
        modes: Mapping[str, EdgeMode] = COMPLETE,
    ) -> None:
        self._declared = contract("qwen3_omni").stages
        self._max_batch = max_batch
        self.runners = {}
        for name in STAGES:
            spec = StageSpec(
                run_id="test", family="qwen3_omni", stage=name, replica=0, generation=0,
                execution_type=self._declared[name].execution_type,
                model=ModelSpec(path=str(folder), load_format=load_format, dtype="float32"),
                devices=(), max_batch=max_batch, memory_fraction=0.3, threads=1, inputs=(), consumers=(), outputs=(),
                tuning=replace(self._declared[name].tuning, **tuning.get(name, {})),
            )  # fmt: skip
            self.runners[name] = build_runner(spec)
            self.runners[name].load()
            self.runners[name].warm_up()
        self.schedule(tuning=tuning, modes=modes)

    def schedule(
        self,
        *,
        tuning: Mapping[str, Mapping[str, object]] = BITWISE,
        modes: Mapping[str, EdgeMode] = COMPLETE,
        kv_blocks: Mapping[str, int] = NOTHING,
        max_batch: int | None = None,
    ) -> None:
        """How the schedulers work from now on; what `tuning` says to the runners was decided before."""
        self.modes = modes
        self._schedulers = {}
        for name in STAGES:
            declared, kv = self._declared[name], self.runners[name].kv_capacity()
            if kv is not None:
                kv = replace(kv, blocks=kv_blocks.get(name, kv.blocks))
            self._schedulers[name] = create_scheduler(
                declared.execution_type,
                max_batch or self._max_batch,
                declared.max_units_a_row,
                tuning=replace(declared.tuning, **tuning.get(name, {})),
                kv=kv,
                lookahead={producer: found.lookahead_units for producer, found in declared.inputs.items()},
            )

    def run(
        self,
        asked: Sequence[Asked],
        *,
        arrivals: Sequence[int] = (),
        leaving: Mapping[int, int] = NO_ONE,
        pace: Mapping[str, int] = NOTHING,
    ) -> list[Answered]:
        """Each request comes after as many rounds of steps as `arrivals` says; at once if it says nothing. One that is
        `leaving` is given up after so many rows of any stage. A stage steps in each, or in every `pace`-th round.
        """
        answers = [Answered() for _ in asked]
        self._emitted: dict[tuple[int, str], list[tuple[int, Payload]]] = {}
        self._waves: dict[int, list[torch.Tensor]] = {}
        self.log: list[tuple[str, int]] = []
        self.steps: dict[str, list[tuple[Row, ...]]] = {name: [] for name in STAGES}
        self.rows: Counter[int] = Counter()
        self.preempted = 0
        present: set[int] = set()
        coming = sorted(zip(arrivals or [0] * len(asked), range(len(asked)), strict=True), reverse=True)
        turn = 0
        while coming or any(self._schedulers.values()):
            while coming and coming[-1][0] <= turn:
                uid = coming.pop()[1]
                self._submit(uid, asked[uid], answers[uid])
                present.add(uid)
            for uid in [uid for uid, rows in leaving.items() if uid in present and self.rows[uid] >= rows]:
                self._forget(uid)
                present.remove(uid)
            progress = [turn % pace.get(name, 1) > 0 or self._step(name, answers) for name in STAGES]
            assert coming or any(progress) or not any(self._schedulers.values()), "no stage can go on"
            turn += 1
        for uid, pieces in self._waves.items():
            answers[uid].waveform = torch.cat(pieces)
        return answers

    def _step(self, name: str, answers: list[Answered]) -> bool:
        step = self._schedulers[name].schedule({}, frozenset())
        if step is None:
            return False
        if step.preempted:
            self.runners[name].preempt(step.preempted)
            self.preempted += len(step.preempted)
        self.steps[name].append(step.rows)
        self.log += [(name, row.uid) for row in step.rows]
        self.rows.update(row.uid for row in step.rows)
        for result in self.runners[name].execute(step.rows) if step.rows else ():
            self._settle(name, result, answers[result.uid])
        return True

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
                self._ready(uid, name, self._schedulers[name].add(staged, self.modes))
            if media:
                tensors = tuple(to_payload(name, torch.from_numpy(array)) for name, array in media.items())
                self._feed(uid, "thinker", "request", [(1, Payload(tensors=tensors))], True)
        except RequestRefused as error:
            self._drop(uid, answer, describe(error, "thinker"))

    def _ready(self, uid: int, name: str, ready: bool) -> None:
        if ready:
            self._schedulers[name].size(uid, self.runners[name].prompt_tokens(uid))

    def _feed(self, uid: int, name: str, producer: str, pieces: list[tuple[int, Payload]], eos: bool) -> None:
        """One message with all pieces; its bytes are overwritten once it is read, as a ring's would be."""
        gathered = gather([payload for _, payload in pieces])
        data = bytearray(gathered.nbytes)
        gathered.fill(memoryview(data))
        self.runners[name].feed(uid, producer, view(gathered.tensors, gathered.meta, memoryview(data)), eos)
        data[:] = b"\xa5" * len(data)
        self._ready(uid, name, self._schedulers[name].extend(uid, producer, sum(units for units, _ in pieces), eos))

    def _settle(self, name: str, result: RowResult, answer: Answered) -> None:
        uid = result.uid
        if result.error is not None:
            self._drop(uid, answer, result.error)
            return
        self._schedulers[name].update(
            (RowProgress(uid=uid, units=result.units, tokens=result.tokens, finished=result.finished),)
        )
        for output in result.outputs:
            answer.text += output.text
            if output.modality == "text" and output.payload is not None:
                answer.logs.append({tensor.name: from_payload(tensor) for tensor in output.payload.tensors})
            elif output.payload is not None:
                assert output.payload.scalar("sample_rate_hz") == 24000
                self.log.append(("audio", uid))
                self._waves.setdefault(uid, []).append(from_payload(output.payload.tensor("audio")))
        if result.finished is not None:
            answer.reasons[name] = result.finished
            self.runners[name].end(uid)
        try:
            self._hand_on(name, result, answer)
        except RequestRefused as error:
            self._drop(uid, answer, describe(error, name))

    def _hand_on(self, name: str, result: RowResult, answer: Answered) -> None:
        """A complete edge gets one message at the end, an incremental one what a step has emitted."""
        uid, eos = result.uid, result.finished is not None
        for emission in result.emissions:
            self._emitted.setdefault((uid, name), []).append((emission.units, emission.payload))
            for tensor in emission.payload.tensors:
                if tensor.name == "generated_ids":
                    answer.text_ids += from_payload(tensor).tolist()
                if tensor.name == "codes":
                    frames = from_payload(tensor).T
                    answer.codes = frames if answer.codes is None else torch.cat((answer.codes, frames), dim=1)
        if (uid, name) in self._emitted and (eos or self.modes[name] == "incremental"):
            consumer, pieces = STAGES[STAGES.index(name) + 1], self._emitted.pop((uid, name))
            if uid in self._schedulers[consumer]:  # else it has had enough
                self._feed(uid, consumer, name, pieces, eos)

    def _drop(self, uid: int, answer: Answered, error: ErrorInfo) -> None:
        answer.error = error
        self._forget(uid)

    def _forget(self, uid: int) -> None:
        for name in STAGES:
            self.runners[name].end(uid)
            if uid in self._schedulers[name]:
                self._schedulers[name].abort(uid)

    def left(self) -> dict[str, object]:
        """What is held of requests that are over: by name, whatever is not nothing."""
        held: dict[str, object] = {}
        for name in STAGES:
            runner = self.runners[name]
            held |= {f"{name} {gauge}": value for gauge, value in self._schedulers[name].gauges()}
            held |= {f"{name} states": runner._states}
            if name == "code2wav":
                held |= {"code2wav streams": getattr(runner._decoder, "_states", ())}
            else:
                held |= {f"{name} tables": runner._tables._rows, f"{name} slots": runner._slots._taken}
                held |= {f"{name} sampler": runner._sampler._open}
        return {what: value for what, value in held.items() if value}
        return {what: value for what, value in held.items() if value}
