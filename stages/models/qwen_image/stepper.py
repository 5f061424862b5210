"""The parts of diffusers' QwenImagePipeline, each for itself: what the loop of its `__call__` does, a step at a time.

The arithmetic is the pipeline's own (diffusers 0.42, pipelines/qwenimage/pipeline_qwenimage.py), and so are all its
modules.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLQwenImage, QwenImagePipeline, QwenImageTransformer2DModel
from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift, retrieve_timesteps
from diffusers.pipelines.qwenimage.pipeline_qwenimage_img2img import retrieve_latents
from diffusers.utils.torch_utils import randn_tensor
from PIL import Image
from torch import nn
from transformers import AutoConfig, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from stages.config import ModelSpec
from stages.errors import RequestRefused
from stages.messages import ImageParams
from stages.models.qwen_image.attention import JointAttention, ragged_on
from stages.models.qwen_image.contract import EDITS
from stages.models.qwen_image.denoiser import Denoiser
from stages.models.qwen_image.frame import for_pictures
from stages.models.qwen_image.modulation import Modulation, Times
from stages.models.qwen_image.texts import TextGraphs
from stages.runners.forward_graphs import MOST, ForwardGraphs, capture_on
from stages.runners.loading import Route, Slot
from stages.runners.pipeline_parts import PipelineParts
from stages.runners.stepper import Canvas, Condition, cut_off
from stages.schedulers.base import Denoising

PROMPT_TOKENS = 512
"""Of a longer prompt the rest does not count, as in the pipeline."""
TILED_PIXELS = 1664 * 928
"""Larger pictures are decoded in tiles that overlap: the largest size that the model was published for."""

TEXT_TOKENS = 32
"""To a multiple of this texts are padded where nothing that is launched depends on their lengths."""

PARTS = ("transformer", "vae", "text_encoder")
# Of all compositions that are remembered and the next, each with as many pictures as are edited at most.
_ROTATIONS = (MOST + 1) * (1 + max(most for most, _ in EDITS.values()))


class QwenImageStepper:
    """A `Stepper` over any folder of a QwenImagePipeline, of which it loads `parts`. `tiled_pixels`: `TILED_PIXELS`.
    `graphs`: on a GPU, CUDA graphs encode texts and decode pictures. `ahead`: what timesteps make of the blocks is
    computed for several steps at once, and a GPU's decoder is one of pictures. `pipeline` is diffusers' own over the
    same modules."""

    fps = 0.0
    recordable = True
    transformers: Sequence[nn.Module] = ()
    _texts: TextGraphs | None = None
    _reads_pictures = False
    _decoding: ForwardGraphs | None = None
    _ragged = False
    _modulation: Modulation | None = None  # with it, denoisers predict, by the id of their transformer

    def __init__(
        self,
        model: ModelSpec,
        *,
        parts: Sequence[str] = PARTS,
        tiled_pixels: int = TILED_PIXELS,
        graphs: bool = False,
        ahead: bool = False,
    ) -> None:
        self._parts = parts
        self._model = model
        self._tiled_pixels = tiled_pixels
        self._graphs = graphs
        self._ahead = ahead

    def load(self, devices: Sequence[torch.device], dtype: torch.dtype) -> int:
        self._device, self._dtype = devices[0], dtype
        parts = PipelineParts(self._model)
        makers: dict[str, tuple[Callable[[], nn.Module], Route]] = {
            "transformer": (lambda: QwenImageTransformer2DModel.from_config(parts.config("transformer")), Slot),
            "vae": (lambda: AutoencoderKLQwenImage.from_config(parts.config("vae")), Slot),
            "text_encoder": (lambda: _text_encoder(parts.folder / "text_encoder"), _text_encoder_slot),
        }
        modules = {
            part: parts.module(part, make, device=self._device, dtype=dtype, route=route)
            for part, (make, route) in makers.items()
            if part in self._parts
        }
        tokenizer = AutoTokenizer.from_pretrained(parts.folder / "tokenizer")
        whole = {"scheduler": parts.scheduler(), "tokenizer": tokenizer, **dict.fromkeys(PARTS), **modules}
        self._pipeline = self.pipeline = self._assembled(parts.folder, whole)
        if "transformer" in modules:
            make, route = makers["transformer"]
            others = [parts.module("transformer", make, device=each, dtype=dtype, route=route) for each in devices[1:]]
            self.transformers = [modules["transformer"], *others]
            for transformer in self.transformers:
                transformer.set_attn_processor(JointAttention())
                # Graphs read the rotations of their grids; diffusers keeps 128, those of all devices together.
                places: Any = transformer.pos_embed
                places._compute_video_freqs = lru_cache(_ROTATIONS)(places._compute_video_freqs)
            # With `zero_cond_t` a step copies from the host, and pictures are told a timestep of their own.
            self.recordable = not parts.config("transformer").get("zero_cond_t")
            if self._ahead and self.recordable:
                self._modulation = Modulation(self.transformers[0])
                self._denoisers = {id(each): Denoiser(each) for each in self.transformers}
                features = parts.config("transformer").get("attention_head_dim", 128)
                self._ragged = all(ragged_on(each, dtype, features) for each in devices)
        # What the pipeline reads off its modules, of which this stage may have one only.
        vae, denoiser = parts.config("vae"), parts.config("transformer")
        self._pipeline.vae_scale_factor = 2 ** len(vae.get("temperal_downsample", (False, True, True)))
        self._channels = denoiser.get("in_channels", 64) // 4
        self._features = denoiser.get("joint_attention_dim", 3584)
        self._multiple = 2 * self._pipeline.vae_scale_factor
        recorded = self._graphs and self._device.type == "cuda"
        if recorded and "text_encoder" in modules and not self._reads_pictures:
            most = PROMPT_TOKENS + self._pipeline.prompt_template_encode_start_idx
            self._texts = TextGraphs(self._pipeline.text_encoder.model.language_model, self._device, most)
        if "vae" in modules:
            self._decoder = modules["vae"].decoder
            if self._ahead and self._device.type == "cuda":
                self._decoder = for_pictures(self._decoder)
            if recorded:
                self._decoding = ForwardGraphs(self._decoded, capture_on(self._device))
        return parts.held

    def _assembled(self, folder: Path, parts: Mapping[str, Any]) -> Any:
        return QwenImagePipeline(**parts)

    def least(self) -> ImageParams:
        side = 2 * self._multiple
        return ImageParams(width=side, height=side, steps=2, true_cfg_scale=2.0, negative_prompt="")

    def denoising(self, image: ImageParams) -> Denoising:
        if image.width % self._multiple or image.height % self._multiple:
            raise RequestRefused(
                f"{image.width}x{image.height}: width and height must be multiples of {self._multiple}"
            )
        grids = self._grids(image)
        return Denoising(
            steps=image.taken,
            tokens=sum(map(prod, grids)) * (2 if image.guided else 1),
            shape=tuple(chain(*grids)),
        )

    def _grids(self, image: ImageParams) -> list[tuple[int, int, int]]:
        """Latent tokens of all that a row holds, as frames, lines and columns; the first are those that are drawn."""
        return [(1, image.height // self._multiple, image.width // self._multiple)]

    def encode(self, text: str, pictures: Sequence[torch.Tensor] = ()) -> Condition:
        pipeline = self._pipeline
        first = pipeline.prompt_template_encode_start_idx
        ids = pipeline.tokenizer(pipeline.prompt_template_encode.format(text)).input_ids
        if self._texts is None:
            embeds = pipeline.encode_prompt(text, device=self._device, max_sequence_length=PROMPT_TOKENS)[0][0]
        else:
            embeds = self._texts(ids)[first:].clone()
        tokens = len(ids) - first
        return Condition(embeds, cut_off(tokens, PROMPT_TOKENS), tokens=min(tokens, PROMPT_TOKENS))

    def blank(self) -> Condition:
        return Condition(torch.zeros(2, self._features, device=self._device, dtype=self._dtype))

    def encode_picture(self, image: ImageParams, pixels: torch.Tensor, seed: int) -> torch.Tensor:
        """As QwenImageImg2ImgPipeline: [1, 1, channels, height / 8, width / 8]."""
        vae = self._pipeline.vae
        processor = self._pipeline.image_processor
        scaled = processor.preprocess(Image.fromarray(pixels.numpy()), height=image.height, width=image.width)
        scaled = scaled.unsqueeze(2).to(device=self._device, dtype=vae.dtype)
        vae.use_tiling = vae.use_slicing = False  # as in the pipeline; the last picture that was decoded has no say
        latents = retrieve_latents(vae.encode(scaled), generator=torch.Generator().manual_seed(seed))
        mean, deviation = self._channels_of_latents
        start: torch.Tensor = ((latents - mean) * (1.0 / deviation)).transpose(1, 2)
        return start

    def begin(self, image: ImageParams, seed: int, start: torch.Tensor | None = None) -> Canvas:
        pipeline = self._pipeline
        generator = torch.Generator().manual_seed(seed)
        schedule = copy.deepcopy(pipeline.scheduler)
        config = schedule.config
        grid = self._grids(image)[0]
        shift = calculate_shift(
            prod(grid),
            config.get("base_image_seq_len", 256),
            config.get("max_image_seq_len", 4096),
            config.get("base_shift", 0.5),
            config.get("max_shift", 1.15),
        )
        sigmas = image.sigmas or np.linspace(1.0, 1 / image.steps, image.steps)
        retrieve_timesteps(schedule, image.steps, "cpu", sigmas=sigmas, mu=shift)
        # Sent without waiting: the device is still at the texts.
        schedule.sigmas, timesteps = (self._sent(each) for each in (schedule.sigmas, schedule.timesteps))
        schedule.timesteps = timesteps
        skipped = image.steps - image.taken
        schedule.set_begin_index(skipped)
        rows, columns = 2 * grid[1], 2 * grid[2]
        draw = partial(randn_tensor, (1, 1, self._channels, rows, columns), generator, dtype=self._dtype)
        if start is None:
            latents = self._sent(draw())
        else:
            draw()  # the picture's own latents, before the noise
            noise = self._sent(draw())
            latents = schedule.scale_noise(start.to(self._dtype), timesteps[skipped : skipped + 1], noise)
        latents = pipeline._pack_latents(latents, 1, self._channels, rows, columns)
        return self._canvas(latents, schedule, timesteps[skipped:])

    def _sent(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else tensor

    def _canvas(self, latents: torch.Tensor, schedule: Any, timesteps: torch.Tensor) -> Canvas:
        if self._modulation is None:
            return Canvas(latents, schedule, timesteps)
        return Canvas(latents, schedule, timesteps, Times(self._modulation, timesteps.to(latents.dtype) / 1000))

    def fitted(self, image: ImageParams, conditions: Sequence[Condition]) -> Sequence[Condition]:
        """Padded, so that texts of most lengths are one composition."""
        if not self._ragged:
            return conditions
        lengths = [len(each.embeds) for each in conditions]
        most = -(-max(lengths) // TEXT_TOKENS) * TEXT_TOKENS
        return [
            replace(
                each,
                embeds=nn.functional.pad(each.embeds, (0, 0, 0, most - length)),
                length=torch.full((1,), length, dtype=torch.int32, device=each.embeds.device),
            )
            for each, length in zip(conditions, lengths, strict=True)
        ]

    def predict(
        self,
        transformer: nn.Module,
        image: ImageParams,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        conditions: Sequence[Condition],
    ) -> torch.Tensor:
        texts = [condition.embeds for condition in conditions]
        pictures = [condition.pictures for condition in conditions if condition.pictures is not None]
        rows = torch.cat([latents, torch.cat(pictures)], dim=1) if pictures else latents
        padded, lengths = nn.utils.rnn.pad_sequence(texts, batch_first=True), [len(text) for text in texts]
        told = [condition.length for condition in conditions if condition.length is not None]
        grids = [self._grids(image)] * len(conditions)
        predicted: torch.Tensor
        if self._modulation is None:
            predicted, *_ = transformer(
                hidden_states=rows,
                timestep=timesteps.to(latents.dtype) / 1000,
                encoder_hidden_states=padded,
                attention_kwargs={"text_lengths": torch.tensor(lengths)},
                img_shapes=grids,
                return_dict=False,
            )
        else:
            predicted = self._denoisers[id(transformer)](
                rows, padded, torch.cat(told) if told else lengths, grids, timesteps
            )
        return predicted[:, : latents.shape[1]]

    def guide(self, wanted: torch.Tensor, unwanted: torch.Tensor, scale: float) -> torch.Tensor:
        guided = unwanted + scale * (wanted - unwanted)
        return guided * (wanted.norm(dim=-1, keepdim=True) / guided.norm(dim=-1, keepdim=True))

    def decode(self, image: ImageParams, latents: torch.Tensor) -> torch.Tensor:
        # What a graph has of memory, one picture that is not cut into tiles may have as well.
        small = len(latents) * image.width * image.height <= self._tiled_pixels
        decode = self._decoding if small and self._decoding is not None else self._decoded
        return decode(replace(image, pictures=()), latents)  # a size is one composition, whatever was edited

    def _decoded(self, image: ImageParams, latents: torch.Tensor) -> torch.Tensor:
        pipeline, vae = self._pipeline, self._pipeline.vae
        unpacked = pipeline._unpack_latents(latents, image.height, image.width, pipeline.vae_scale_factor).to(vae.dtype)
        mean, deviation = self._channels_of_latents
        scaled = unpacked / (1.0 / deviation) + mean
        vae.use_tiling = vae.use_slicing = image.width * image.height > self._tiled_pixels
        if vae.use_tiling:
            decoded = vae.decode(scaled, return_dict=False)[0]
        else:  # as there, but that nothing is kept for a next frame
            decoded = self._decoder(vae.post_quant_conv(scaled)).clamp(-1.0, 1.0)
        pixels: torch.Tensor = pipeline.image_processor.postprocess(decoded[:, :, 0], output_type="pt")
        return pixels.permute(0, 2, 3, 1)

    @cached_property
    def _channels_of_latents(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation of each channel of the VAE's latents."""
        vae = self._pipeline.vae
        values = torch.tensor([vae.config.latents_mean, vae.config.latents_std])
        mean, deviation = values.view(2, 1, vae.config.z_dim, 1, 1, 1).to(self._device, vae.dtype)
        return mean, deviation


def _text_encoder(folder: Path) -> nn.Module:
    module: nn.Module = Qwen2_5_VLForConditionalGeneration(AutoConfig.from_pretrained(folder))
    return module


def _text_encoder_slot(name: str) -> Slot:
    """Published folders have the names of before the language model was a part of its own."""
    if name.startswith("visual."):
        return Slot(f"model.{name}")
    if name.startswith("model.") and not name.startswith(("model.language_model.", "model.visual.")):
        return Slot(name.replace("model.", "model.language_model.", 1))
    return Slot(name)
