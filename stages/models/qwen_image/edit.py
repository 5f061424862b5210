"""What diffusers' QwenImageEditPipeline and QwenImageEditPlusPipeline do beside drawing: a prompt is read together with
small versions of the pictures, whose latents stand behind those that are drawn in every step.

The arithmetic is the pipelines' own (diffusers 0.42, pipelines/qwenimage), and so are all modules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import diffusers
import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen2VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.processing_utils import ProcessorMixin

from stages.errors import RequestRefused
from stages.messages import ImageParams
from stages.models.pipeline_folder import pipeline_kind
from stages.models.qwen_image.contract import EDIT_TOKENS, edited
from stages.models.qwen_image.stepper import QwenImageStepper
from stages.models.registry import fitted
from stages.runners.stepper import Condition
from stages.schedulers.base import Denoising

_MOST_UNEVEN = 100
"""How many times as long as the other a side may be: the image processor takes 200, after the sides are rounded."""


class QwenImageEditStepper(QwenImageStepper):
    """A `Stepper` over a folder of either pipeline."""

    _reads_pictures = True

    def _assembled(self, folder: Path, parts: Mapping[str, Any]) -> Any:
        self._edited, self._seen = edited(folder)
        return getattr(diffusers, pipeline_kind(folder))(processor=_Processor(folder / "processor"), **parts)

    def least(self) -> ImageParams:
        return replace(super().least(), pictures=((32, 32),))

    def blank(self) -> Condition:
        tokens = sum(map(prod, self._grids(self.least())[1:]))
        pictures = torch.zeros(1, tokens, 4 * self._channels, device=self._device, dtype=self._dtype)
        return replace(super().blank(), pictures=pictures)

    def denoising(self, image: ImageParams) -> Denoising:
        if not image.pictures:
            raise RequestRefused("this model edits pictures, and the request brings none")
        for width, height in image.pictures:
            if max(width, height) > _MOST_UNEVEN * min(width, height):
                raise RequestRefused(
                    f"a picture of {width}x{height}: a side may be at most {_MOST_UNEVEN} times as long as the other"
                )
        return super().denoising(image)

    def _grids(self, image: ImageParams) -> list[tuple[int, int, int]]:
        sizes = (fitted(self._edited, *size) for size in image.pictures)
        return super()._grids(image) + [
            (1, height // self._multiple, width // self._multiple) for width, height in sizes
        ]

    def encode(self, text: str, pictures: Sequence[torch.Tensor] = ()) -> Condition:
        seen = [self._scaled(pixels, self._seen) for pixels in pictures]
        embeds, _ = self._pipeline.encode_prompt(text, image=seen, device=self._device)
        sizes = [(picture.height, picture.width) for picture in seen]
        counted = self._pipeline.processor._get_num_multimodal_tokens(image_sizes=sizes).num_image_tokens
        return Condition(embeds[0], tokens=len(embeds[0]), seen_tokens=sum(counted))

    def encode_picture(self, image: ImageParams, pixels: torch.Tensor, seed: int) -> torch.Tensor:
        """Packed, as it stands in a row: [1, tokens, features]."""
        pipeline, scaled = self._pipeline, self._scaled(pixels, self._edited)
        values = pipeline.image_processor.preprocess(scaled).unsqueeze(2).to(self._device, pipeline.vae.dtype)
        pipeline.vae.use_tiling = pipeline.vae.use_slicing = False
        latents = pipeline._encode_vae_image(values, None)
        packed: torch.Tensor = pipeline._pack_latents(latents, 1, self._channels, *latents.shape[3:])
        return packed

    def _scaled(self, pixels: torch.Tensor, area: int) -> Image.Image:
        height, width = pixels.shape[:2]
        across, down = fitted(area, width, height)
        scaled: Image.Image = self._pipeline.image_processor.resize(Image.fromarray(pixels.numpy()), down, across)
        return scaled


class _Processor(Qwen2VLProcessor):  # type: ignore[misc]
    """transformers' own but for videos, whose processor needs torchvision. Refuses what is too long for a row."""

    def __init__(self, folder: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids([self.image_token, self.video_token])
        ProcessorMixin.__init__(self, Qwen2VLImageProcessorPil.from_pretrained(folder), tokenizer)

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]

    def __call__(self, **asked: Any) -> Any:
        found = super().__call__(**asked)
        tokens = found["input_ids"].shape[1]
        if tokens > EDIT_TOKENS:
            raise RequestRefused(
                f"with what is seen of its pictures the prompt has {tokens} tokens; at most {EDIT_TOKENS} are read"
            )
        return found
