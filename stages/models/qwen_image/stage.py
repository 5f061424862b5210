"""The runner of each stage of the family, by name. Imported inside a stage process only."""

from stages.config import StageSpec
from stages.models.qwen_image.stepper import PARTS, QwenImageStepper
from stages.runners.base import ModelRunner
from stages.runners.diffusion import DiffusionRunner

# What each of the three stages loads; a painter loads everything. The first also reads a picture to start from.
_PARTS = {"text_encoder": ("text_encoder", "vae"), "denoiser": ("transformer",), "vae": ("vae",)}


def build_runner(spec: StageSpec) -> ModelRunner:
    """The runner of `spec.stage`, not loaded yet."""
    return DiffusionRunner(spec, QwenImageStepper(spec.model, parts=_PARTS.get(spec.stage, PARTS)))
