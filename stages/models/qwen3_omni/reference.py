"""transformers' own `generate` over the whole model in one process: what `omni bench compare` holds the stages against.

It answers one request after the other and then tells, in the events of the stages, when each token, frame and sound
was there. It has the stages' weights and prompts, and nothing of how they compute.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

from stages.config import StageSpec
from stages.errors import StageError
from stages.events import (
    InputReady,
    MessagePut,
    OutputProduced,
    StageEvent,
    StageFinished,
    StepDone,
    StepRow,
)
from stages.messages import StageRequest, StreamMessage
from stages.models.qwen3_omni.contract import SAMPLE_RATE_HZ
from stages.models.qwen3_omni.modules import Source, ThinkerParts, fill, read_config
from stages.models.qwen3_omni.processing import load_processor
from stages.models.registry import ReferenceOptions
from stages.payload import Payload, PayloadRef, TensorSpec
from stages.runners.loading import build
from stages.runners.reference import serve, within_message
from stages.runners.tensors import array_payload
from stages.worker.channel import Inbox, Outbox


def run(spec: StageSpec, inbox: Inbox, outbox: Outbox) -> None:
    """Returns after `Stop`. Whatever loading raises, this raises."""
    torch.set_num_threads(spec.threads)
    serve(Reference(spec), spec, inbox, outbox)


class Reference:
    """The whole model. `facts` are for the ready event."""

    def __init__(self, spec: StageSpec) -> None:
        folder = Path(spec.model.path)
        dtype: torch.dtype = getattr(torch, spec.model.dtype)
        source = Source(
            folder=folder,
            device=torch.device("cuda", 0) if spec.devices else torch.device("cpu"),
            dtype=dtype,
            dummy=spec.model.load_format == "dummy",
        )
        self._config = read_config(folder)
        self._source = source
        self._processor = load_processor(folder, self._config, dummy=source.dummy)
        self._model = build(
            lambda: modeling.Qwen3OmniMoeForConditionalGeneration._from_config(self._config, dtype=dtype),
            device=source.device,
            dtype=dtype,
        )
        # With the very values that the stages have.
        held = sum(fill(getattr(self._model, part), part, source) for part in ("thinker", "talker", "code2wav"))
        self._shipped = self._model.get_experts_implementation()
        self.facts = (("device", str(source.device)), ("dtype", spec.model.dtype), ("weight_bytes", str(held)))

    def answer(self, request: StageRequest) -> dict[str, list[StageEvent]]:
        """Greedy, to the limits that `request.options` sets. What each stage would have told, by process."""
        options = request.options
        if not isinstance(options, ReferenceOptions):
            raise StageError("a request to the reference needs its options")
        ids = self._processor.encode(request.conversation, {}).input_ids[None].to(self._source.device)
        limits = options.limits
        spoken = "audio" in request.outputs
        start_ns = time.monotonic_ns()
        with torch.inference_mode(), self._experts(options.experts), self._watched() as seen:
            result = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                speaker=request.voice or self._speaker(),
                return_audio=spoken,
                thinker_max_new_tokens=limits["thinker"],
                thinker_min_new_tokens=limits["thinker"],
                thinker_eos_token_id=self._config.im_end_token_id,
                thinker_do_sample=False,
                talker_max_new_tokens=limits["talker"],
                talker_min_new_tokens=limits["talker"],
                talker_do_sample=False,
            )
            self._synchronize()
        end_ns = time.monotonic_ns()
        sequences = result[0] if isinstance(result, tuple) else result
        text = sequences[0, ids.shape[1] :].cpu().numpy()
        told: dict[str, list[StageEvent]] = {
            "thinker.0": [
                InputReady(uid=request.uid, t_ns=start_ns, prompt_tokens=ids.shape[1]),
                *_steps(request.uid, start_ns, seen.tokens_ns),
                *_texts(request.uid, seen.tokens_ns),
                _put(request.uid, end_ns, ("thinker", "talker"), "generated_ids", text.astype(np.int64)),
            ]
        }
        if spoken:
            codes = np.ascontiguousarray(seen.codes[0].T.cpu().numpy().astype(np.int32))
            told["talker.0"] = [
                *_steps(request.uid, seen.tokens_ns[-1], seen.frames_ns),
                _put(request.uid, end_ns, ("talker", "code2wav"), "codes", codes),
            ]
            told["code2wav.0"] = [_sound(request.uid, end_ns, len(codes), result[1].numel())]
        last = list(told)[-1]
        told[last].append(StageFinished(uid=request.uid, t_ns=end_ns, reason="length", units=0))
        return told

    def _speaker(self) -> str:
        named: dict[str, int] = self._config.talker_config.speaker_id
        return "ethan" if "ethan" in named else next(iter(named))

    def _synchronize(self) -> None:
        if self._source.device.type == "cuda":
            torch.cuda.synchronize(self._source.device)

    @contextmanager
    def _experts(self, forced: str) -> Iterator[None]:
        """`generate` takes another implementation for decoding than for the prompt on a GPU, unless one is forced."""
        self._model.set_experts_implementation(forced or self._shipped)
        modules = [self._model.thinker, self._model.talker, self._model.talker.code_predictor] if forced else []
        for module in modules:
            if not hasattr(module, "_optimize_model_for_decode"):
                raise StageError("this version of transformers chooses experts in another way: nothing can be forced")
            module._optimize_model_for_decode = nullcontext
        try:
            yield
        finally:
            for module in modules:
                del module._optimize_model_for_decode

    @contextmanager
    def _watched(self) -> Iterator["_Seen"]:
        """What comes while `generate` runs: stamps of tokens and frames once the device has them, and the codes."""
        seen = _Seen()

        def stamp(into: list[int]) -> Any:
            def hook(module: object, arguments: object, output: object) -> None:
                self._synchronize()
                into.append(time.monotonic_ns())

            return hook

        decode = self._model.code2wav.chunked_decode

        def spy(codes: torch.Tensor, **options: Any) -> Any:
            seen.codes = codes.clone()
            return decode(codes, **options)

        head = ThinkerParts.of(self._model.thinker).lm_head
        hooks = [
            head.register_forward_hook(stamp(seen.tokens_ns)),
            self._model.talker.codec_head.register_forward_hook(stamp(seen.frames_ns)),
        ]
        self._model.code2wav.chunked_decode = spy
        try:
            yield seen
        finally:
            del self._model.code2wav.chunked_decode
            for hook in hooks:
                hook.remove()


class _Seen:
    def __init__(self) -> None:
        self.tokens_ns: list[int] = []
        self.frames_ns: list[int] = []
        self.codes = torch.empty(0)


def _steps(uid: int, start_ns: int, ends_ns: list[int]) -> Iterator[StepDone]:
    for index, (begin, end) in enumerate(pairwise([start_ns, *ends_ns])):
        row = StepRow(uid=uid, phase="decode" if index else "prefill", position=index, units=1)
        yield StepDone(index=index, t_ns=begin, end_ns=end, rows=(row,))


def _texts(uid: int, stamps_ns: list[int]) -> Iterator[OutputProduced]:
    for seq, stamp in enumerate(stamps_ns):
        last = seq == len(stamps_ns) - 1
        yield OutputProduced(uid=uid, t_ns=stamp, modality="text", seq=seq, units=1, eos=last)


def _put(uid: int, t_ns: int, edge: tuple[str, str], name: str, values: Any) -> MessagePut:
    payload = Payload(tensors=(array_payload(name, values),))
    ref = within_message(payload)
    message = StreamMessage(uid=uid, producer=edge[0], consumer=edge[1], seq=0, units=len(values), eos=True, ref=ref)
    return MessagePut(uid=uid, t_ns=t_ns, message=message)


def _sound(uid: int, t_ns: int, frames: int, samples: int) -> OutputProduced:
    """How long it is; the samples stay here."""
    spec = TensorSpec(name="audio", dtype="float32", shape=(samples,), offset=0)
    ref = PayloadRef(tensors=(spec,), meta=(("sample_rate_hz", SAMPLE_RATE_HZ),), nbytes=spec.nbytes)
    return OutputProduced(uid=uid, t_ns=t_ns, modality="audio", seq=0, units=frames, eos=True, ref=ref)
