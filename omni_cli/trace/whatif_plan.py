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
from omni_cli.trace.summary import ProcessSummary

TUNING = ("step_tokens", "first_chunk_frames", "chunk_frames")
KEYS = ("replicas", "devices", "max_batch", "kv_blocks", *TUNING)


def changed_plan(plan: ExecutionPlan, words: Sequence[str]) -> ExecutionPlan:
    """`deploy.stages.STAGE.KEY=VALUE` for KEYS, in the grammar of every command. ConfigError with all that is wrong."""
    overrides, found = classify(words, takes_text)
    problems, stages = list(found), {stage.name: stage for stage in plan.stages}
    for override in sorted(
        overrides, key=lambda each: each.key.endswith(".replicas")
    ):  # their number has the last word
        match override.key.split("."):
            case ["deploy", "stages", name, key] if name in stages and key in KEYS:
                stage, wrong = _changed(stages[name], key, override)
                stages[name] = stage
                problems += wrong
            case _:
                problems.append(_refused(override, plan))
    if problems:
        raise ConfigError(report(problems, "the command line"))
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


def _changed(stage: StagePlan, key: str, override: Override) -> tuple[StagePlan, list[Problem]]:
    config, problems = validated(StageDeployConfig, {key: override.value}, ("deploy", "stages", stage.name))
    if config is None:
        return stage, problems
    return stage.model_copy(update=dict(_fields(stage, key, getattr(config, key)))), []


def _fields(stage: StagePlan, key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if key == "replicas" and value is not None:
        yield "replicas", tuple(ReplicaPlan(index=index, devices=()) for index in range(value))
    elif key == "devices" and value is not None:
        yield "replicas", tuple(ReplicaPlan(index=index, devices=devices) for index, devices in enumerate(value))
    elif key == "kv_blocks" and stage.kv is not None and value is not None:
        yield "kv", stage.kv.model_copy(update={"blocks": value})
    elif key in TUNING:
        yield "tuning", replace(stage.tuning, **{key: value})
    elif key == "max_batch" and value is not None:
        yield "max_batch", value


def _refused(override: Override, plan: ExecutionPlan) -> Problem:
    keys = [f"deploy.stages.{stage.name}.{key}" for stage in plan.stages for key in KEYS]
    close = nearest(override.key, keys)
    hint = f"; the nearest is `{close}`" if close else f"; there are deploy.stages.STAGE.{{{','.join(KEYS)}}}"
    return _problem(override, f"cannot be changed in a recorded run{hint}")


def _problem(override: Override, message: str) -> Problem:
    return Problem(key=override.key, message=message, where=COMMAND_LINE)
