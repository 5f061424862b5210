"""The parts of diffusers' StableDiffusion3Pipeline, each for itself: what its loop does, a step at a time.

The arithmetic is the pipeline's own (diffusers 0.42, pipelines/stable_diffusion_3), and so are all its modules.
Adapters for pictures and the skipping of layers are not taken over.
"""

import copy
from collections.abc import Callable, Sequence

import torch
from diffusers import AutoencoderKL, SD3Transformer2DModel, StableDiffusion3Pipeline
from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import calculate_shift, retrieve_timesteps
from torch import nn
from transformers import AutoConfig, AutoTokenizer, CLIPTextModelWithProjection, T5EncoderModel

from stages.config import ModelSpec
from stages.errors import RequestRefused, StageError
from stages.messages import ImageParams
from stages.models.sd3.contract import weights
from stages.runners.pipeline_parts import PipelineParts
from stages.runners.stepper import Canvas, Condition, cut_off
from stages.schedulers.base import Denoising

PROMPT_TOKENS = 256
"""What T5 reads of a prompt, as in the pipeline; the two CLIP encoders read the 77 that they know."""


class SD3Stepper:
    """A `Stepper` over any folder of a StableDiffusion3Pipeline, with T5 or without it."""

    fps = 0.0
    recordable = False  # not tried on a GPU
    transformers: Sequence[nn.Module] = ()

    def __init__(self, model: ModelSpec) -> None:
        self._model = model

    def load(self, devices: Sequence[torch.device], dtype: torch.dtype) -> int:
        self._device = device = devices[0]
        parts = PipelineParts(self._model)
        makers: dict[str, Callable[[], nn.Module]] = {
            "transformer": lambda: SD3Transformer2DModel.from_config(parts.config("transformer")),
            "vae": lambda: AutoencoderKL.from_config(parts.config("vae")),
            "text_encoder": lambda: CLIPTextModelWithProjection(_config(parts, "text_encoder")),
            "text_encoder_2": lambda: CLIPTextModelWithProjection(_config(parts, "text_encoder_2")),
            "text_encoder_3": lambda: T5EncoderModel(_config(parts, "text_encoder_3")),
        }
        present = weights(self._model.path)
        modules = {
            part: parts.module(part, make, device=device, dtype=dtype) if part in present else None
            for part, make in makers.items()
        }
        tokenizers = {
            name: AutoTokenizer.from_pretrained(parts.folder / name) if encoder in present else None
            for encoder in makers
            if (name := encoder.replace("text_encoder", "tokenizer")) != encoder
        }
        self._pipeline = StableDiffusion3Pipeline(scheduler=parts.scheduler(), **modules, **tokenizers)
        self._multiple = self._pipeline.vae_scale_factor * self._pipeline.patch_size
        others = [parts.module("transformer", makers["transformer"], device=each, dtype=dtype) for each in devices[1:]]
        self.transformers = [self._pipeline.transformer, *others]
        return parts.held

    def least(self) -> ImageParams:
        side = 2 * self._multiple
        return ImageParams(width=side, height=side, steps=2, true_cfg_scale=2.0, negative_prompt="")

    def denoising(self, image: ImageParams) -> Denoising:
        columns, rows = image.width // self._multiple, image.height // self._multiple
        most = self._pipeline.transformer.config.pos_embed_max_size
        if image.width % self._multiple or image.height % self._multiple or max(columns, rows) > most:
            raise RequestRefused(
                f"{image.width}x{image.height}: width and height must be multiples of {self._multiple}, at most "
                f"{most * self._multiple}"
            )
        tokens = columns * rows * (2 if image.guided else 1)
        return Denoising(steps=image.steps, tokens=tokens, shape=(image.width, image.height))

    def encode(self, text: str, pictures: Sequence[torch.Tensor] = ()) -> Condition:
        pipeline = self._pipeline
        embeds, _, pooled, _ = pipeline.encode_prompt(
            text, None, None, self._device, do_classifier_free_guidance=False, max_sequence_length=PROMPT_TOKENS
        )
        readers = {"CLIP": (pipeline.tokenizer, pipeline.tokenizer_max_length)}
        if pipeline.tokenizer_3 is not None:
            readers["T5"] = (pipeline.tokenizer_3, PROMPT_TOKENS)
        counts = {name: (len(tokenizer(text).input_ids), most) for name, (tokenizer, most) in readers.items()}
        cuts = [f"{cut} for {name}" for name, (tokens, most) in counts.items() if (cut := cut_off(tokens, most))]
        read = max(min(tokens, most) for tokens, most in counts.values())
        return Condition(embeds[0], "; ".join(cuts), pooled[0], read)

    def blank(self) -> Condition:
        return self.encode("")

    def encode_picture(self, image: ImageParams, pixels: torch.Tensor, seed: int) -> torch.Tensor:
        raise RequestRefused("this model starts from no picture")

    def begin(self, image: ImageParams, seed: int, start: torch.Tensor | None = None) -> Canvas:
        pipeline = self._pipeline
        config, transformer = pipeline.scheduler.config, pipeline.transformer
        latents = pipeline.prepare_latents(
            1,
            transformer.config.in_channels,
            image.height,
            image.width,
            transformer.dtype,
            self._device,
            torch.Generator().manual_seed(seed),
        )
        shift = {}
        if config.get("use_dynamic_shifting"):
            shift["mu"] = calculate_shift(
                (image.width // self._multiple) * (image.height // self._multiple),
                config.get("base_image_seq_len", 256),
                config.get("max_image_seq_len", 4096),
                config.get("base_shift", 0.5),
                config.get("max_shift", 1.16),
            )
        schedule = copy.deepcopy(pipeline.scheduler)
        sigmas = list(image.sigmas) or None
        timesteps, _ = retrieve_timesteps(schedule, image.steps, self._device, sigmas=sigmas, **shift)
        return Canvas(latents, schedule, timesteps)

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
            hidden_states=latents,
            timestep=timesteps,
            encoder_hidden_states=torch.stack([condition.embeds for condition in conditions]),
            pooled_projections=torch.stack([_pooled(condition) for condition in conditions]),
            return_dict=False,
        )[0]
        return predicted

    def guide(self, wanted: torch.Tensor, unwanted: torch.Tensor, scale: float) -> torch.Tensor:
        return unwanted + scale * (wanted - unwanted)

    def decode(self, image: ImageParams, latents: torch.Tensor) -> torch.Tensor:
        pipeline, config = self._pipeline, self._pipeline.vae.config
        decoded = pipeline.vae.decode((latents / config.scaling_factor) + config.shift_factor, return_dict=False)[0]
        pixels: torch.Tensor = pipeline.image_processor.postprocess(decoded, output_type="pt")
        return pixels.permute(0, 2, 3, 1)


def _pooled(condition: Condition) -> torch.Tensor:
    if condition.pooled is None:
        raise StageError("a text was encoded without its summary")
    return condition.pooled


def _config(parts: PipelineParts, part: str) -> object:
    return AutoConfig.from_pretrained(parts.folder / part)
