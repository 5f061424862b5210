"""The parts of diffusers' WanPipeline, each for itself: what the loop of its `__call__` does, a step at a time.

The arithmetic is the pipeline's own (diffusers 0.42, pipelines/wan/pipeline_wan.py), and so are all its modules. Of a
checkpoint with two transformers (Wan 2.2 A14B), or with a timestep for each token, nothing is known here: the contract
refuses it.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from diffusers import AutoencoderKLWan, WanPipeline, WanTransformer3DModel
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from torch import nn
from transformers import AutoConfig, AutoTokenizer, UMT5EncoderModel

from stages.config import ModelSpec
from stages.errors import RequestRefused
from stages.messages import ImageParams
from stages.models.wan.contract import FPS, VAE_DTYPE
from stages.runners.pipeline_parts import PipelineParts
from stages.runners.stepper import Canvas, Condition, cut_off
from stages.schedulers.base import Denoising

PROMPT_TOKENS = 512
"""Of a longer prompt the rest does not count, as in the pipeline."""


class WanStepper:
    """A `Stepper` over any folder of a WanPipeline with one transformer."""

    fps = FPS
    recordable = False  # not tried on a GPU
    transformers: Sequence[nn.Module] = ()

    def __init__(self, model: ModelSpec) -> None:
        self._model = model

    def load(self, devices: Sequence[torch.device], dtype: torch.dtype) -> int:
        self._device = device = devices[0]
        parts = PipelineParts(self._model)
        makers: dict[str, Callable[[], nn.Module]] = {
            "transformer": lambda: WanTransformer3DModel.from_config(parts.config("transformer")),
            "text_encoder": lambda: UMT5EncoderModel(AutoConfig.from_pretrained(parts.folder / "text_encoder")),
            "vae": lambda: AutoencoderKLWan.from_config(parts.config("vae")),
        }

        def loaded(part: str, on: torch.device = device, dtype: torch.dtype = dtype) -> Any:
            return parts.module(part, makers[part], device=on, dtype=dtype)

        self.transformers = [loaded("transformer", each) for each in devices]
        self._pipeline = WanPipeline(
            scheduler=parts.scheduler(),
            tokenizer=AutoTokenizer.from_pretrained(parts.folder / "tokenizer"),
            text_encoder=loaded("text_encoder"),
            transformer=self.transformers[0],
            vae=loaded("vae", dtype=getattr(torch, VAE_DTYPE)),
        )
        patch = self._pipeline.transformer.config.patch_size
        self._multiple = self._pipeline.vae_scale_factor_spatial * patch[1]
        return parts.held

    def least(self) -> ImageParams:
        side = 2 * self._multiple
        return ImageParams(width=side, height=side, steps=2, frames=5, true_cfg_scale=2.0, negative_prompt="")

    def denoising(self, image: ImageParams) -> Denoising:
        every = self._pipeline.vae_scale_factor_temporal
        if image.width % self._multiple or image.height % self._multiple or (image.frames - 1) % every:
            raise RequestRefused(
                f"{image.width}x{image.height}, {image.frames} frames: width and height must be multiples of "
                f"{self._multiple}, frames 1 more than a multiple of {every}"
            )
        tokens = (image.width // self._multiple) * (image.height // self._multiple) * ((image.frames - 1) // every + 1)
        shape = (image.width, image.height, image.frames)
        return Denoising(steps=image.steps, tokens=tokens * (2 if image.guided else 1), shape=shape)

    def encode(self, text: str, pictures: Sequence[torch.Tensor] = ()) -> Condition:
        pipeline = self._pipeline
        embeds, _ = pipeline.encode_prompt(
            text, do_classifier_free_guidance=False, max_sequence_length=PROMPT_TOKENS, device=self._device
        )
        tokens = len(pipeline.tokenizer(prompt_clean(text)).input_ids)
        read = min(tokens, PROMPT_TOKENS)
        return Condition(embeds[0].to(pipeline.transformer.dtype), cut_off(tokens, PROMPT_TOKENS), tokens=read)

    def blank(self) -> Condition:
        transformer = self._pipeline.transformer
        shape = (PROMPT_TOKENS, transformer.config.text_dim)
        return Condition(torch.zeros(shape, device=self._device, dtype=transformer.dtype))

    def encode_picture(self, image: ImageParams, pixels: torch.Tensor, seed: int) -> torch.Tensor:
        raise RequestRefused("this model starts from no picture")

    def begin(self, image: ImageParams, seed: int, start: torch.Tensor | None = None) -> Canvas:
        schedule = copy.deepcopy(self._pipeline.scheduler)
        schedule.set_timesteps(image.steps, device=self._device)
        schedule.set_begin_index(0)
        latents = self._pipeline.prepare_latents(
            1,
            self._pipeline.transformer.config.in_channels,
            image.height,
            image.width,
            image.frames,
            torch.float32,
            self._device,
            torch.Generator().manual_seed(seed),
        )
        return Canvas(latents, schedule, schedule.timesteps)

    def fitted(self, image: ImageParams, conditions: Sequence[Condition]) -> Sequence[Condition]:
        return conditions

    def predict(
        self,
        transformer: nn.Module,
        image: ImageParams,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        conditions: Sequence[Condition],
    ) -> torch.Tensor:
        predicted: torch.Tensor = transformer(
            hidden_states=latents.to(self._pipeline.transformer.dtype),
            timestep=timesteps,
            encoder_hidden_states=torch.stack([condition.embeds for condition in conditions]),
            return_dict=False,
        )[0]
        return predicted

    def guide(self, wanted: torch.Tensor, unwanted: torch.Tensor, scale: float) -> torch.Tensor:
        return unwanted + scale * (wanted - unwanted)

    def decode(self, image: ImageParams, latents: torch.Tensor) -> torch.Tensor:
        vae = self._pipeline.vae
        latents = latents.to(vae.dtype)

        def channels(values: Any) -> torch.Tensor:
            return torch.tensor(values).view(1, vae.config.z_dim, 1, 1, 1).to(latents.device, latents.dtype)

        scaled = latents / (1.0 / channels(vae.config.latents_std)) + channels(vae.config.latents_mean)
        vae.use_slicing = True  # one after the other: several videos at once take as many times the memory
        decoded = vae.decode(scaled, return_dict=False)[0]
        frames: torch.Tensor = self._pipeline.video_processor.postprocess_video(decoded, output_type="pt")
        return frames.permute(0, 1, 3, 4, 2)
