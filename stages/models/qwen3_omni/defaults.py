"""What a request leaves open: the sampling that transformers' `generate` uses, and what the checkpoint puts over it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.models.checkpoint import read_json
from stages.runners.sampling import SamplingParams

# The defaults of Qwen3OmniMoeForConditionalGeneration.generate.
_GENERATE = {
    "thinker": SamplingParams(max_tokens=1024),
    "talker": SamplingParams(max_tokens=4096, temperature=0.9, top_k=50, repetition_penalty=1.05),
}
# The code predictor of a sampled talker is not configurable in transformers.
CODE_PREDICTOR = SamplingParams(max_tokens=1, temperature=1.0, top_k=50, top_p=0.8)
_FIELDS = ("max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty")


def sampling_defaults(folder: Path, stage: str) -> SamplingParams:
    """Of a stage (thinker or talker): `<stage>_<field>` of `generation_config.json` over `generate`'s own."""
    path = folder / "generation_config.json"
    given: dict[str, Any] = read_json(path) if path.exists() else {}
    found = {field: value for field in _FIELDS if (value := given.get(f"{stage}_{field}")) is not None}
    if "max_new_tokens" in found:
        found["max_tokens"] = found.pop("max_new_tokens")
    if given.get(f"{stage}_do_sample") is False:
        found["temperature"] = 0.0
    return replace(_GENERATE[stage], **found)
