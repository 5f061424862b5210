"""Merges configuration, family contract and device inventory into one frozen plan, or refuses with every reason.

Starts nothing, loads nothing, imports no torch.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from omni_cli.config.load import LoadedConfig
from omni_cli.config.report import Problem, located, report
from omni_cli.config.schema import EdgeConfig
from omni_cli.errors import PlanError, reason
from omni_cli.plan.admission import request_problems
from omni_cli.plan.connector import Carriers
from omni_cli.plan.devices import Inventory
from omni_cli.plan.graph import Graph, check_topology, deployed
from omni_cli.plan.memory import kv_plan, memory_problems
from omni_cli.plan.model import EdgePlan, ExecutionPlan, ModelPlan, ReplicaPlan, StagePlan
from omni_cli.plan.mps import mps_devices
from omni_cli.plan.placement import Placement, place
from omni_cli.plan.tuning import max_batch, tuned, tuning_problems
from stages.config import EdgeMode
from stages.errors import StageError
from stages.messages import REQUEST
from stages.models.registry import FamilyContract

_LEAST_SLOTS = 16
_AS_CONFIGURED = {"max_queue", "startup_timeout_s", "restarts", "restart_window_s", "threads"}
TEXT = "text"


def build_plan(loaded: LoadedConfig, inventory: Inventory, outputs: Collection[str] | None = None) -> ExecutionPlan:
    """The plan. `outputs` are the final outputs to deploy where `deploy.outputs` leaves it open (None: all).

    Raises PlanError with every problem, each with its key and the place where that was written.
    """
    config, family = loaded.config, loaded.family
    problems = list(check_topology(config.pipeline, family))
    problems += _unknown_outputs(loaded)
    broken = bool(problems)
    if config.deploy.outputs is not None:
        outputs = config.deploy.outputs
    graph = (
        Graph(stages=tuple(name for name in config.pipeline.stages if name in family.stages), outputs={})
        if broken
        else deployed(config.pipeline, outputs)
    )
    problems += _setting_problems(graph, loaded)
    placements, misplaced = place(graph.stages, config.deploy, family, inventory)
    problems += misplaced
    physical = tuple(device.physical for device in inventory.devices)
    served = placements if family.has_weights and not misplaced else {}
    carriers = Carriers(family=family, placements=placements, inventory=inventory)
    if not misplaced:
        problems += carriers.problems(graph, config.deploy)
    mps, unshared = mps_devices(config.deploy.mps, served, physical, inventory.no_mps)
    problems += unshared
    problems += _tuning_problems(graph, loaded, placements)
    model, found = _model(loaded, on_gpu=bool(placements) and all(p.replicas[0] for p in placements.values()))
    problems += found
    if not problems:
        plan = _assemble(loaded, graph, carriers, model, mps)
        # Which of the deployed outputs a request asks for is judged with the request: it may say something else.
        problems += request_problems(plan, config.request.model_copy(update={"modalities": None}), "request.")
        problems += memory_problems(plan, family, inventory)
        problems += _retry_problems(plan)
        if not problems:
            return plan
    raise PlanError(report(located(problems, loaded.origins), "the plan"))


def _unknown_outputs(loaded: LoadedConfig) -> Iterator[Problem]:
    """Outputs that no stage of the pipeline produces, asked for by the deployment or by every request."""
    has = loaded.config.pipeline.outputs
    for key, names in (
        ("deploy.outputs", loaded.config.deploy.outputs),
        ("request.modalities", loaded.config.request.modalities),
    ):
        if names is not None and not names:
            yield Problem(key=key, message=f"is empty; the pipeline gives {', '.join(has)}")
        for name in names or ():
            if name not in has:
                message = f"no stage of pipeline `{loaded.pipeline}` produces `{name}`; it gives {', '.join(has)}"
                yield Problem(key=key, message=message)


def _setting_problems(graph: Graph, loaded: LoadedConfig) -> Iterator[Problem]:
    """Settings that the family's stage cannot follow, or that would have no effect."""
    for name in graph.stages:
        contract = loaded.family.stages[name]
        setting = loaded.config.deploy.stage(name)
        if setting.output != EdgeConfig() and all(output == TEXT for output in contract.outputs):
            message = f"has no effect: `{name}` produces no final media; leave it out"
            yield Problem(key=f"deploy.stages.{name}.output", message=message)


def _tuning_problems(graph: Graph, loaded: LoadedConfig, placements: Mapping[str, Placement]) -> Iterator[Problem]:
    for name in graph.stages:
        on_gpu = name in placements and bool(placements[name].replicas[0])
        yield from tuning_problems(name, loaded.family, loaded.config.deploy.stage(name), on_gpu=on_gpu)


def _retry_problems(plan: ExecutionPlan) -> Iterator[Problem]:
    for stage in plan.stages:
        if stage.retry and stage.unrepeatable:
            message = f"is {stage.retry}, but no request can be run again there: {stage.unrepeatable}; leave it out"
            yield Problem(key=f"deploy.stages.{stage.name}.retry", message=message)


def _model(loaded: LoadedConfig, *, on_gpu: bool) -> tuple[ModelPlan, list[Problem]]:
    model, family = loaded.config.model, loaded.family
    dtype = model.dtype if model.dtype != "auto" else "bfloat16" if on_gpu and family.has_weights else "float32"
    if not family.has_weights:
        plan = ModelPlan(path="", load_format=model.load_format, dtype=dtype)
        if model.path is None:
            return plan, []
        return plan, [Problem(key="model.path", message=f"family `{family.name}` has no weights; leave it out")]
    path, problems = _folder(model.path, family)
    if path and family.check_model is not None:
        try:
            found = family.check_model(path, model.load_format)
        except OSError as error:
            found = (f"{path}: cannot be read: {reason(error)}",)
        problems += [Problem(key="model.path", message=line.removeprefix("model.path: ")) for line in found]
    return ModelPlan(path=path, load_format=model.load_format, dtype=dtype), problems


def _folder(path: str | None, family: FamilyContract) -> tuple[str, list[Problem]]:
    """An embedded checkpoint by its name, else a folder; one of the same name is written `./NAME`."""
    name = path if path is not None else next(iter(family.embedded), None)
    if name is None:
        return "", [Problem(key="model.path", message=f"family `{family.name}` has no embedded default; set it")]
    if name in family.embedded:
        try:
            return family.embedded[name](), []
        except (StageError, OSError) as error:
            hint = "it is made in omni's cache folder, which OMNI_CACHE names"
            message = f"the embedded checkpoint `{name}` cannot be made: {error}; {hint}"
            return "", [Problem(key="model.path", message=message)]
    folder = Path(name).expanduser().absolute()
    if family.embedded and "/" not in name and not os.path.isdir(folder):
        known = ", ".join(f"`{one}`" for one in family.embedded)
        message = f"there is no folder {folder}; embedded checkpoints of `{family.name}` are {known}"
        return "", [Problem(key="model.path", message=message)]
    return str(folder), []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edges:
    """Makes the edges of a plan, each once, as both of its ends see it."""

    loaded: LoadedConfig
    batches: Mapping[str, int]
    model_path: str
    carriers: Carriers

    def into(self, consumer: str) -> list[EdgePlan]:
        inputs = self.loaded.config.pipeline.stages[consumer].inputs
        found = [self.between(producer, consumer, mode) for producer, mode in inputs.items()]
        return found or ([self.media(consumer)] if self.loaded.family.media else [])

    def out_of(self, producer: str, stages: Iterable[str], *, final: bool) -> list[EdgePlan]:
        topology = self.loaded.config.pipeline.stages
        found = [
            self.between(producer, other, topology[other].inputs[producer])
            for other in stages
            if producer in topology[other].inputs
        ]
        return [*found, self.final(producer)] if final else found

    def between(self, producer: str, consumer: str, mode: EdgeMode) -> EdgePlan:
        setting = self.loaded.config.deploy.stage(consumer).inputs.get(producer, EdgeConfig())
        slots = 4 * max(self.batches[producer], self.batches[consumer])
        key = f"deploy.stages.{consumer}.inputs.{producer}"
        return self._edge(producer, consumer, mode, setting, slots, key, sized=True)

    def media(self, consumer: str) -> EdgePlan:
        """The edge of decoded media into a first stage; 0 bytes: as large as the inputs of the run need."""
        setting = self.loaded.config.deploy.stage(consumer).inputs.get(REQUEST, EdgeConfig())
        key = f"deploy.stages.{consumer}.inputs.{REQUEST}"
        return self._edge(REQUEST, consumer, "complete", setting, 2 * self.batches[consumer], key, sized=False)

    def final(self, producer: str) -> EdgePlan:
        setting = self.loaded.config.deploy.stage(producer).output
        key = f"deploy.stages.{producer}.output"
        return self._edge(producer, REQUEST, "incremental", setting, 4 * self.batches[producer], key, sized=True)

    def _edge(
        self, producer: str, consumer: str, mode: EdgeMode, setting: EdgeConfig, slots: int, key: str, *, sized: bool
    ) -> EdgePlan:
        connector, reason = self.carriers.choose(producer, consumer, setting)
        slots = setting.slots or max(_LEAST_SLOTS, slots)
        # Twice the largest payload: one can be written while the other is read.
        default = 2 * self.loaded.family.edge_bytes(self.model_path, producer, consumer) if sized else 0
        stage, lookahead = self.loaded.family.stages.get(consumer), 0
        if mode == "incremental" and stage is not None and producer in stage.inputs:
            lookahead = stage.inputs[producer].lookahead_units
        return EdgePlan(
            producer=producer,
            consumer=consumer,
            mode=mode,
            connector=connector,
            reason=reason,
            slots=0 if connector == "inline" else slots,
            ring_bytes=0 if connector == "inline" else setting.ring_bytes or default,
            key=key,
            lookahead_units=lookahead,
        )


def _assemble(
    loaded: LoadedConfig, graph: Graph, carriers: Carriers, model: ModelPlan, mps: tuple[int, ...]
) -> ExecutionPlan:
    config, family = loaded.config, loaded.family
    placements, settings = carriers.placements, {name: config.deploy.stage(name) for name in graph.stages}
    batches = {name: max_batch(family.stages[name], settings[name]) for name in graph.stages}
    tunings = {
        name: tuned(family.stages[name], settings[name], on_gpu=bool(placements[name].replicas[0]))
        for name in graph.stages
    }
    edges = _Edges(loaded=loaded, batches=batches, model_path=model.path, carriers=carriers)

    def stage(name: str) -> StagePlan:
        topology = config.pipeline.stages[name]
        outputs = tuple(modality for modality, producer in graph.outputs.items() if producer == name)
        memory = family.memory(model.path, name, model.dtype)
        made = StagePlan(
            name=name,
            execution_type=topology.execution_type,
            replicas=tuple(ReplicaPlan(index=i, devices=d) for i, d in enumerate(placements[name].replicas)),
            max_batch=batches[name],
            memory_fraction=placements[name].memory_fraction,
            **settings[name].model_dump(include=_AS_CONFIGURED),
            tuning=tunings[name],
            weight_bytes=memory.weight_bytes,
            kv=kv_plan(memory, placements[name], tunings[name], batches[name], carriers.inventory),
            inputs=tuple(edges.into(name)),
            consumers=tuple(edges.out_of(name, graph.stages, final=any(output != TEXT for output in outputs))),
            outputs=outputs,
            retry=settings[name].retry or 0,
        )
        again = settings[name].retry is None and not made.unrepeatable
        return made.model_copy(update={"retry": 1}) if again else made

    return ExecutionPlan(
        recipe=loaded.recipe,
        pipeline=loaded.pipeline,
        family=family.name,
        model=model,
        stages=tuple(stage(name) for name in graph.stages),
        outputs=graph.outputs,
        media=family.media,
        voices=family.voices(model.path) if family.voices is not None else (),
        physical_devices=tuple(device.physical for device in carriers.inventory.devices),
        mps_devices=mps,
        heartbeat_s=config.deploy.heartbeat_s,
        drain_timeout_s=config.deploy.drain_timeout_s,
        image=family.image(model.path) if family.image is not None else None,
        options=loaded.options,
    )
