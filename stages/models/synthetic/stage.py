"""The runners of the synthetic families by stage."""

from collections.abc import Callable

from stages.config import StageSpec
from stages.models.synthetic.code2wav import Code2WavRunner
from stages.models.synthetic.mixer import MixerRunner
from stages.models.synthetic.talker import TalkerRunner
from stages.models.synthetic.thinker import ThinkerRunner
from stages.runners.base import ModelRunner

_RUNNERS: dict[str, Callable[[StageSpec], ModelRunner]] = {
    "thinker": ThinkerRunner,
    "talker": TalkerRunner,
    "singer": TalkerRunner,
    "code2wav": Code2WavRunner,
    "mixer": MixerRunner,
}


def build_runner(spec: StageSpec) -> ModelRunner:
    """Raises KeyError for a stage that the family does not have."""
    return _RUNNERS[spec.stage](spec)
