"""The plan of a recorded run with other values for some keys of its stages. Places nothing: no machine must have it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from omni_cli.config.load import validated
from omni_cli.config.nearest import nearest
from omni_cli.config.overrides import Override, classify
from omni_cli.config.report import COMMAND_LINE, Problem, report
from omni_cli.config.schema import StageDeployConfig, takes_text
from omni_cli.errors import ConfigError
from omni_cli.plan.model import ExecutionPlan, ReplicaPlan, StagePlan
from omni_cli.plan.placement import replica_problems
from omni_cli.plan.tuning import tuning_problems
from omni_cli.trace.summary import ProcessSummary
from stages.models.registry import FamilyContract
from stages.models.registry import contract as contract_of

TUNING = ("step_tokens", "first_chunk_frames", "chunk_frames")
KEYS = ("replicas", "devices", "max_batch", "kv_blocks", *TUNING)


def changed_plan(plan: ExecutionPlan, words: Sequence[str]) -> ExecutionPlan:
    """`deploy.stages.STAGE.KEY=VALUE` for KEYS, in the grammar of every command. ConfigError with all that is wrong."""
    overrides, found = classify(words, takes_text)
    problems, stages = list(found), {stage.name: stage for stage in plan.stages}
    given: dict[str, dict[str, Any]] = {}
    for override in overrides:
        match override.key.split("."):
            case ["deploy", "stages", name, key] if name in stages and key in KEYS:
                if override.value is None:
                    problems.append(_problem(override, "leaves it to the planner, which plans nothing here; say what"))
                else:
                    given.setdefault(name, {})[key] = override.value
            case _:
                problems.append(_refused(override, plan))
    for name, values in given.items():
        config, wrong = validated(StageDeployConfig, values, ("deploy", "stages", name))
        problems += wrong
        if config is not None:
            problems += _stage_problems(stages[name], config, contract_of(plan.family))
            stages[name] = _changed(stages[name], config)
    if problems:
        raise ConfigError(report([replace(p, where=COMMAND_LINE) for p in problems], "the command line"))
    return plan.model_copy(update={"stages": tuple(stages.values())})


def measured(plan: ExecutionPlan, processes: Sequence[ProcessSummary]) -> ExecutionPlan:
    """The plan with the KV blocks that the processes had, which a plan may only estimate."""
    facts = {process.process.rpartition(".")[0]: dict(process.facts) for process in processes}

    def stage(planned: StagePlan) -> StagePlan:
        blocks = int(facts.get(planned.name, {}).get("kv_blocks", 0))
        if planned.kv is None:
            return planned
        kv = planned.kv.model_copy(update={"blocks": blocks or planned.kv.blocks})
        return planned.model_copy(update={"kv": kv if kv.blocks else None})

    return plan.model_copy(update={"stages": tuple(map(stage, plan.stages))})


def _stage_problems(stage: StagePlan, config: StageDeployConfig, family: FamilyContract) -> Iterator[Problem]:
    """What the planner would refuse, beside what was recorded."""
    yield from replica_problems(stage.name, config)
    chosen = max(family.stages[stage.name].tuning.step_tokens or 0, stage.max_batch)  # if nobody has said otherwise
    recorded = None if stage.tuning.step_tokens == chosen else stage.tuning.step_tokens
    whole = {
        "max_batch": config.max_batch or stage.max_batch,
        "step_tokens": config.step_tokens or recorded,
        "decode": stage.tuning.decode,
    }
    on_gpu = bool(stage.replicas[0].devices)
    found = tuple(tuning_problems(stage.name, family, config.model_copy(update=whole), on_gpu=on_gpu))
    yield from found
    if config.kv_blocks is not None and stage.kv is None and not found:
        message = f"has no effect: `{stage.name}` has no KV cache in the recorded run; leave it out"
        yield Problem(key=f"deploy.stages.{stage.name}.kv_blocks", message=message)


def _changed(stage: StagePlan, config: StageDeployConfig) -> StagePlan:
    devices = config.devices or tuple(replica.devices for replica in stage.replicas)
    count = config.replicas or len(devices)
    batch = config.max_batch or stage.max_batch
    tuning = replace(stage.tuning, **{key: value for key in TUNING if (value := getattr(config, key)) is not None})
    if tuning.step_tokens is not None:  # as the planner has it: a token for each request
        tuning = replace(tuning, step_tokens=max(tuning.step_tokens, batch))
    kv = stage.kv and stage.kv.model_copy(update={"blocks": config.kv_blocks or stage.kv.blocks})
    replicas = tuple(ReplicaPlan(index=index, devices=devices[index % len(devices)]) for index in range(count))
    return stage.model_copy(update={"replicas": replicas, "max_batch": batch, "tuning": tuning, "kv": kv})


def _refused(override: Override, plan: ExecutionPlan) -> Problem:
    keys = [f"deploy.stages.{stage.name}.{key}" for stage in plan.stages for key in KEYS]
    close = nearest(override.key, keys)
    hint = f"; the nearest is `{close}`" if close else f"; there are deploy.stages.STAGE.{{{','.join(KEYS)}}}"
    return _problem(override, f"cannot be changed in a recorded run{hint}")


def _problem(override: Override, message: str) -> Problem:
    return Problem(key=override.key, message=message)
