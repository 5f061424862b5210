"""How each stage works: the deploy keys of `StageTuning`, over the defaults that the family's contract gives."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from omni_cli.config.report import Problem
from omni_cli.config.schema import StageDeployConfig
from stages.config import StageTuning
from stages.models.registry import FamilyContract, StageContract

KEYS = tuple(field.name for field in dataclasses.fields(StageTuning))
DEFAULT_MAX_BATCH = 8
CHUNK_KEYS = ("first_chunk_frames", "chunk_frames")
ON_THE_CPU: dict[str, Any] = {"graphs": False, "compile": "none"}
"""Keys that say something on a GPU only, and what is left of them elsewhere."""
EXACT_KEYS = (*CHUNK_KEYS, "graphs")  # of no use to transformers' decoding


def max_batch(contract: StageContract, setting: StageDeployConfig) -> int:
    """Requests that a replica works on at once."""
    if setting.max_batch is not None:
        return setting.max_batch
    return DEFAULT_MAX_BATCH if contract.max_batch is None else min(DEFAULT_MAX_BATCH, contract.max_batch)


def tuned(contract: StageContract, setting: StageDeployConfig, *, on_gpu: bool) -> StageTuning:
    """The keys in effect. On the CPU there are no CUDA graphs and nothing is compiled, whatever the contract's default,
    transformers' decoding has chunks of its own, and a step cache decides on the host what is run. A step has at
    least a token for each request."""
    given = {key: value for key in KEYS if (value := getattr(setting, key)) is not None}
    found = dataclasses.replace(contract.tuning, **given)
    if found.decode == "transformers":
        found = dataclasses.replace(found, **dict.fromkeys(EXACT_KEYS))
    if found.step_cache == "first_block":
        found = dataclasses.replace(found, graphs=None)
    if found.step_tokens is not None:
        found = dataclasses.replace(found, step_tokens=max(found.step_tokens, max_batch(contract, setting)))
    idle = {key: value for key, value in ON_THE_CPU.items() if getattr(found, key) is not None}
    return found if on_gpu else dataclasses.replace(found, **idle)


def tuning_problems(
    name: str, family: FamilyContract, setting: StageDeployConfig, *, on_gpu: bool
) -> Iterator[Problem]:
    """Keys that mean nothing to the stage, and values that it cannot follow."""
    defaults, limit = family.stages[name].tuning, family.stages[name].max_batch
    if limit is not None and setting.max_batch is not None and setting.max_batch > limit:
        message = f"is {setting.max_batch}, but `{name}` of family `{family.name}` takes at most {limit}"
        yield Problem(key=f"deploy.stages.{name}.max_batch", message=message)
    useful = [key for key in KEYS if getattr(defaults, key) is not None]
    for key in KEYS:
        if getattr(setting, key) is not None and key not in useful:
            others = f"it takes {', '.join(useful)}" if useful else "it takes none of its kind"
            message = f"has no effect: `{name}` of family `{family.name}` has no use for it ({others}); leave it out"
            yield Problem(key=f"deploy.stages.{name}.{key}", message=message)
    for key, idle in ON_THE_CPU.items():
        value = getattr(setting, key)
        if value not in (None, idle) and key in useful and not on_gpu:
            message = f"is {str(value).lower()}, but `{name}` runs on the CPU, where it says nothing; leave it out"
            yield Problem(key=f"deploy.stages.{name}.{key}", message=message)
    if setting.graphs and "graphs" in useful and (setting.step_cache or defaults.step_cache) == "first_block":
        message = "has no effect with step_cache=first_block, which decides on the host what is run; leave it out"
        yield Problem(key=f"deploy.stages.{name}.graphs", message=message)
    yield from _chunk_problems(name, family.stages[name], setting)
    batch = max_batch(family.stages[name], setting)
    if setting.step_tokens is not None and setting.step_tokens < batch:
        message = f"is {setting.step_tokens}, less than max_batch={batch}: a step has a token for each request"
        yield Problem(key=f"deploy.stages.{name}.step_tokens", message=message)


def _chunk_problems(name: str, contract: StageContract, setting: StageDeployConfig) -> Iterator[Problem]:
    most = contract.max_units_a_row
    for key in EXACT_KEYS:
        value = getattr(setting, key)
        if value is None or getattr(contract.tuning, key) is None:
            continue
        if (setting.decode or contract.tuning.decode) == "transformers":
            message = f"has no effect with decode=transformers, whose chunks have {most} frames; leave it out"
            yield Problem(key=f"deploy.stages.{name}.{key}", message=message)
        elif key in CHUNK_KEYS and most is not None and value > most:
            yield Problem(key=f"deploy.stages.{name}.{key}", message=f"is {value}; at most {most} are decoded at once")
