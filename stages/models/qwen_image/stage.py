"""The runner of each stage of the family, by name. Imported inside a stage process only."""

from stages.config import StageSpec
from stages.models.qwen_image.contract import PARTS, image
from stages.models.qwen_image.edit import QwenImageEditStepper
from stages.models.qwen_image.stepper import QwenImageStepper
from stages.runners.base import ModelRunner
from stages.runners.diffusion import DiffusionRunner


def build_runner(spec: StageSpec) -> ModelRunner:
    """The runner of `spec.stage`, not loaded yet."""
    kind = QwenImageEditStepper if image(spec.model.path).least_pictures else QwenImageStepper
    graphs = bool(spec.tuning.graphs)
    # A step cache works between the blocks of diffusers' transformer.
    ahead = bool(spec.devices) and spec.tuning.step_cache != "first_block"
    return DiffusionRunner(spec, kind(spec.model, parts=PARTS[spec.stage], graphs=graphs, ahead=ahead))
