"""The topology against the family's contract, and the part of it that a deployment needs. Knows no devices."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from omni_cli.config.nearest import nearest
from omni_cli.config.report import Problem
from omni_cli.config.schema import PipelineConfig, StageConfig
from stages.models.registry import FamilyContract, StageContract


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The deployed stages in topological order, and the final outputs with their stages."""

    stages: tuple[str, ...]
    outputs: Mapping[str, str]


def check_topology(pipeline: PipelineConfig, family: FamilyContract) -> tuple[Problem, ...]:
    """Everything in which the topology breaks the contract or is no DAG that leads to its outputs."""
    return (
        *(p for name, stage in pipeline.stages.items() for p in _stage_problems(name, stage, pipeline, family)),
        *_output_problems(pipeline, family),
        *_shape_problems(pipeline),
    )


def _stage_problems(
    name: str, stage: StageConfig, pipeline: PipelineConfig, family: FamilyContract
) -> Iterator[Problem]:
    key = f"pipeline.stages.{name}"
    contract = family.stages.get(name)
    if contract is None:
        yield Problem(key=key, message=f"family `{family.name}` has no such stage; it has {', '.join(family.stages)}")
        return
    if stage.execution_type != contract.execution_type:
        message = f"is {contract.execution_type} in family `{family.name}`, not {stage.execution_type}"
        yield Problem(key=f"{key}.execution_type", message=message)
    if contract.inputs and not stage.inputs:
        yield Problem(key=f"{key}.inputs", message=f"the stage has no input; it takes {', '.join(contract.inputs)}")
    for producer, mode in stage.inputs.items():
        yield from (
            Problem(key=f"{key}.inputs.{producer}", message=message)
            for message in _edge_problems(name, producer, mode, contract, pipeline, family)
        )


def _edge_problems(
    name: str, producer: str, mode: str, contract: StageContract, pipeline: PipelineConfig, family: FamilyContract
) -> Iterator[str]:
    if producer not in pipeline.stages:
        close = nearest(producer, pipeline.stages)
        hint = f"; did you mean `{close}`" if close else "; add it to pipeline.stages"
        yield f"the pipeline has no stage `{producer}`, which feeds `{name}`{hint}"
    elif producer not in contract.inputs:
        takes = ", ".join(contract.inputs) or "no stage's output"
        yield f"`{name}` cannot be fed by `{producer}`; in family `{family.name}` it takes {takes}"
    elif mode not in (offered := contract.inputs[producer].modes):
        need = "must have the complete input" if mode == "incremental" else "cannot wait for the complete input"
        yield f"is {mode}, but `{name}` {need}: it offers {', '.join(offered)}"
    elif mode == "incremental" and producer in family.stages and not family.stages[producer].streams:
        yield f"is incremental, but `{producer}` cannot emit while it runs; make it complete"


def _output_problems(pipeline: PipelineConfig, family: FamilyContract) -> Iterator[Problem]:
    if not pipeline.outputs:
        yield Problem(key="pipeline.outputs", message="is empty; name the stage of each final output, as {text: NAME}")
    for modality, stage in pipeline.outputs.items():
        key = f"pipeline.outputs.{modality}"
        if stage not in pipeline.stages:
            close = nearest(stage, pipeline.stages)
            hint = f"; did you mean `{close}`" if close else ""
            yield Problem(key=key, message=f"the pipeline has no stage `{stage}`{hint}")
        elif stage in family.stages and modality not in (gives := family.stages[stage].outputs):
            types = f"it gives {', '.join(gives)}" if gives else "it gives no final output"
            yield Problem(key=key, message=f"`{stage}` does not give {modality}; {types}")


def _shape_problems(pipeline: PipelineConfig) -> Iterator[Problem]:
    try:
        _order(pipeline, pipeline.stages)
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        key = f"pipeline.stages.{circle[1]}.inputs.{circle[0]}"
        yield Problem(key=key, message=f"the stages feed each other in a circle: {' -> '.join(circle)}")
        return
    used = _ancestors(pipeline, pipeline.outputs.values())
    for name in pipeline.stages:
        if name not in used:
            message = "reaches no final output; give its output a type in pipeline.outputs, or remove the stage"
            yield Problem(key=f"pipeline.stages.{name}", message=message)


def deployed(pipeline: PipelineConfig, outputs: Collection[str] | None) -> Graph:
    """The stages that the named final outputs need (None: all), of a topology without problems."""
    chosen = {m: stage for m, stage in pipeline.outputs.items() if outputs is None or m in outputs}
    used = _ancestors(pipeline, chosen.values())
    return Graph(stages=tuple(name for name in _order(pipeline, used) if name in used), outputs=chosen)


def _order(pipeline: PipelineConfig, stages: Collection[str]) -> tuple[str, ...]:
    """Topological, and among equals as written, so that a plan does not depend on hashes."""
    written = {name: index for index, name in enumerate(pipeline.stages)}
    sorter = TopologicalSorter(
        {n: [p for p in stage.inputs if p in written] for n, stage in pipeline.stages.items() if n in stages}
    )
    sorter.prepare()
    ordered: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=written.__getitem__)
        ordered += ready
        sorter.done(*ready)
    return tuple(ordered)


def _ancestors(pipeline: PipelineConfig, finals: Collection[str]) -> set[str]:
    found: set[str] = set()
    todo = [name for name in finals if name in pipeline.stages]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [producer for producer in pipeline.stages[name].inputs if producer in pipeline.stages]
    return found
