"""The runner of the code2wav stage: frames of codes in, samples out, as many frames a row as the scheduler gives it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from stages.config import StageSpec
from stages.errors import StageError, describe
from stages.events import FinishReason
from stages.messages import StageRequest
from stages.models.qwen3_omni.code2wav import ChunkedDecoder, DecodeCounts, Piece
from stages.models.qwen3_omni.code2wav_exact import ExactDecoder
from stages.models.qwen3_omni.contract import CHUNK_FRAMES, SAMPLE_RATE_HZ
from stages.models.qwen3_omni.modules import Source, stage_module
from stages.models.qwen3_omni.runner import StageRunner
from stages.payload import Payload
from stages.runners.base import Output, RowResult
from stages.runners.graphs import Size, batch_buckets
from stages.runners.tensors import from_payload, to_payload
from stages.schedulers.base import Row
from stages.schedulers.chunks import Chunking


def chunk_buckets(spec: StageSpec) -> tuple[list[Size], list[Size]]:
    """(rows, frames) of the scheduler's usual steps: of requests that begin, and of those that go on."""
    tuning = spec.tuning
    chunking = Chunking(first=tuning.first_chunk_frames or 1, then=tuning.chunk_frames or 1, most=CHUNK_FRAMES)
    budget = max(spec.max_batch * chunking.later_sizes[0], chunking.most)

    def sizes(frames: Sequence[int]) -> list[Size]:
        return [(rows, size) for size in frames for rows in batch_buckets(max(1, min(spec.max_batch, budget // size)))]

    return sizes(chunking.first_sizes[:2]), sizes(chunking.later_sizes)


@dataclass(slots=True)
class Code2WavRequest:
    """One request: all codes [frames, groups] that have come, why they ended, and how many frames are decoded."""

    request: StageRequest
    codes: torch.Tensor
    reason: FinishReason | None = None
    done: int = 0


class Code2WavRunner(StageRunner[Code2WavRequest]):
    """`ModelRunner` of code2wav. Its units are frames. A chunk's last 555 samples come with the frame after it."""

    _counts = DecodeCounts()

    def _load(self, config: Any, source: Source) -> int:
        module, held = stage_module("code2wav", config, source)
        self._decoder: ExactDecoder | ChunkedDecoder
        if self._spec.tuning.decode == "transformers":
            self._decoder = ChunkedDecoder(module, device=source.device)
        else:
            captured = source.device.type == "cuda" and bool(self._spec.tuning.graphs)
            first, later = chunk_buckets(self._spec) if captured else ((), ())
            self._decoder = ExactDecoder(module, device=source.device, first=first, later=later)
        self._groups = int(config.code2wav_config.num_quantizers)
        self._codebook = int(config.code2wav_config.codebook_size)
        return held

    def warm_up(self) -> None:
        tuning = self._spec.tuning
        first, then = tuning.first_chunk_frames or 1, tuning.chunk_frames or 1
        codes = torch.zeros(first + then, self._groups, dtype=torch.int32)
        with torch.inference_mode():
            self._decoder.capture()
            for start, end in ((0, first), (first, first + then)):
                self._decoder.decode([Piece(uid=-1, codes=codes, start=start, end=end)])
        self._decoder.forget(-1)

    def end(self, uid: int) -> None:
        self._decoder.forget(uid)
        super().end(uid)

    def counters(self) -> tuple[tuple[str, int], ...]:
        """`frames_computed` of requests, `context_rows` decoded again, `padding_frames` for nobody; and the paths."""
        counts = self._counts
        return (
            ("frames_computed", counts.frames),
            ("context_rows", counts.context),
            ("padding_frames", counts.padding),
            *((name, count) for name, count in self._decoder.paths.take() if count),
        )

    def execute(self, rows: tuple[Row, ...]) -> tuple[RowResult, ...]:
        self._counts = DecodeCounts()
        self._decoder.paths.take()
        results: dict[int, RowResult] = {}
        pieces: list[Piece] = []
        for row in rows:
            try:
                piece = self._piece(row, self._states[row.uid])
            except StageError as error:
                results[row.uid] = RowResult(uid=row.uid, units=0, error=describe(error, self._spec.stage))
                continue
            if row.units:
                pieces.append(piece)
            else:
                results[row.uid] = self._result(row, None)
        if pieces:
            with torch.inference_mode():
                waves, self._counts = self._decoder.decode(pieces)
            by_uid = {piece.uid: wave for piece, wave in zip(pieces, waves, strict=True)}
            results.update({row.uid: self._result(row, by_uid[row.uid]) for row in rows if row.uid in by_uid})
        return tuple(results[row.uid] for row in rows)

    def _open(self, request: StageRequest) -> Code2WavRequest:
        return Code2WavRequest(request=request, codes=torch.empty(0, self._groups, dtype=torch.int32))

    def _take(self, state: Code2WavRequest, payload: Payload, eos: bool) -> None:
        state.codes = torch.cat((state.codes, from_payload(payload.tensor("codes"))))
        if eos:
            state.reason = cast("FinishReason", payload.scalar("finish_reason"))

    def _piece(self, row: Row, state: Code2WavRequest) -> Piece:
        end = row.position + row.units
        if row.position != state.done or end > len(state.codes):
            raise StageError(
                f"request {row.uid}: frames {row.position} to {end} were scheduled where {state.done} are decoded and "
                f"{len(state.codes)} have come"
            )
        codes = state.codes[row.position : end]
        # On a GPU a code outside of the table would end the process, not the request.
        if row.units and (int(codes.min()) < 0 or int(codes.max()) >= self._codebook):
            raise StageError(
                f"request {row.uid}: frames {row.position} to {end} hold a code outside of the codebook of "
                f"{self._codebook}"
            )
        return Piece(uid=row.uid, codes=state.codes, start=row.position, end=end)

    def _result(self, row: Row, wave: torch.Tensor | None) -> RowResult:
        state = self._states[row.uid]
        state.done += row.units
        finished = state.reason if state.done == len(state.codes) else None
        outputs: tuple[Output, ...] = ()
        if wave is not None:
            payload = Payload(tensors=(to_payload("audio", wave),), meta=(("sample_rate_hz", SAMPLE_RATE_HZ),))
            outputs = (Output(modality="audio", units=row.units, payload=payload),)
        return RowResult(
            uid=row.uid,
            units=row.units,
            finished=finished if state.done or finished is None else "empty",
            outputs=outputs,
        )
