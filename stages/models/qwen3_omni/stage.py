"""The runner of each stage of the family, by name. Imported inside a stage process only."""

from stages.config import StageSpec
from stages.models.qwen3_omni.code2wav_runner import Code2WavRunner
from stages.models.qwen3_omni.talker_runner import TalkerRunner
from stages.models.qwen3_omni.thinker_runner import ThinkerRunner
from stages.runners.base import ModelRunner

_RUNNERS: dict[str, type[ThinkerRunner] | type[TalkerRunner] | type[Code2WavRunner]] = {
    "thinker": ThinkerRunner,
    "talker": TalkerRunner,
    "code2wav": Code2WavRunner,
}


def build_runner(spec: StageSpec) -> ModelRunner:
    """The runner of `spec.stage`, not loaded yet."""
    return _RUNNERS[spec.stage](spec)
