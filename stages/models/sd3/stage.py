"""The runner of the family's one stage. Imported inside a stage process only."""

from stages.config import StageSpec
from stages.models.sd3.stepper import SD3Stepper
from stages.runners.base import ModelRunner
from stages.runners.diffusion import DiffusionRunner


def build_runner(spec: StageSpec) -> ModelRunner:
    """The runner of `spec.stage`, not loaded yet."""
    return DiffusionRunner(spec, SD3Stepper(spec.model))
