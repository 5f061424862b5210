"""diffusers' own QwenImagePipeline in one process: what `omni bench compare` holds the stages against.

It draws by the pipeline's `__call__` and tells, in the events of the stages, when each step and picture was there. It
has the stages' weights, and nothing of how they compute.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from diffusers.models.transformers.transformer_qwenimage import QwenDoubleStreamAttnProcessor2_0

from stages.config import StageSpec
from stages.errors import StageError
from stages.events import OutputProduced, StageEvent, StageFinished, StepDone, StepRow
from stages.messages import StageRequest
from stages.models.qwen_image.stepper import PROMPT_TOKENS, QwenImageStepper
from stages.payload import Payload
from stages.runners.reference import serve, within_message
from stages.runners.tensors import array_payload
from stages.worker.channel import Inbox, Outbox


def run(spec: StageSpec, inbox: Inbox, outbox: Outbox) -> None:
    """Returns after `Stop`. Whatever loading raises, this raises."""
    serve(Reference(spec), spec, inbox, outbox)


class Reference:
    """The whole pipeline. `facts` are for the ready event."""

    def __init__(self, spec: StageSpec) -> None:
        torch.set_num_threads(spec.threads)
        self._spec = spec
        self._device = torch.device("cuda", 0) if spec.devices else torch.device("cpu")
        stepper = QwenImageStepper(spec.model)
        held = stepper.load((self._device,), getattr(torch, spec.model.dtype))
        self._pipeline = stepper.pipeline
        self._pipeline.transformer.set_attn_processor(QwenDoubleStreamAttnProcessor2_0())  # as it ships
        self._pipeline.set_progress_bar_config(disable=True)
        self.facts = (("device", str(self._device)), ("dtype", spec.model.dtype), ("weight_bytes", str(held)))

    def answer(self, request: StageRequest) -> Mapping[str, Sequence[StageEvent]]:
        """The steps of the stage that denoises, and the picture."""
        image = request.image
        if image is None or image.strength is not None:
            raise StageError("the reference draws pictures from a prompt alone")
        ends_ns = [time.monotonic_ns()]

        def stamp(pipeline: object, step: int, timestep: object, kept: dict[str, Any]) -> dict[str, Any]:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            ends_ns.append(time.monotonic_ns())
            return {}

        pixels = self._pipeline(
            prompt="".join(part.text for turn in request.conversation for part in turn.parts),
            negative_prompt=image.negative_prompt,
            true_cfg_scale=image.true_cfg_scale if image.guided else 1.0,
            width=image.width,
            height=image.height,
            num_inference_steps=image.steps,
            sigmas=list(image.sigmas) or None,
            generator=torch.Generator().manual_seed(request.seed),
            max_sequence_length=PROMPT_TOKENS,
            callback_on_step_end=stamp,
            output_type="np",
        ).images[0]
        shown = array_payload("image", np.ascontiguousarray((pixels * 255).round().astype(np.uint8)))
        uid, t_ns = request.uid, time.monotonic_ns()
        ref = within_message(Payload(tensors=(shown,)))
        picture = OutputProduced(uid=uid, t_ns=t_ns, modality="image", seq=0, units=1, eos=True, ref=ref)
        # the first stage of three has no output; the second takes the steps
        done = picture, StageFinished(uid=uid, t_ns=t_ns, reason="stop", units=1)
        return {self._spec.process if self._spec.outputs else "denoiser.0": (*_steps(uid, ends_ns), *done)}


def _steps(uid: int, ends_ns: list[int]) -> Iterator[StepDone]:
    """The first one includes the encoding of the texts."""
    for index, (begin, end) in enumerate(pairwise(ends_ns)):
        row = StepRow(uid=uid, phase="denoise", position=index, units=1)
        yield StepDone(index=index, t_ns=begin, end_ns=end, rows=(row,))
