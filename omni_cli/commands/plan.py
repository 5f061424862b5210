"""`omni plan`: the resolved plan as a table or as JSON, and the origin of every value. Starts nothing."""

import json
from collections.abc import Iterator
from typing import Annotated

import typer

from omni_cli.config.load import LoadedConfig, load_config
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory, visible_devices
from omni_cli.plan.explain import explain
from omni_cli.plan.model import EdgePlan, ExecutionPlan, StagePlan
from omni_cli.table import stdout, table
from stages.messages import REQUEST

_MODES = """
complete: the consumer starts at the end of its producer, with all of it; incremental: with the first message. Which it
is stands in pipeline.stages.STAGE.inputs.PRODUCER; a stage that needs the whole (a waveform, say) takes it complete"""

app = typer.Typer()


@app.command()
def plan(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="recipe=NAME, group choices and values.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON, with its digest.")] = False,
    origins: Annotated[bool, typer.Option("--explain", help="Print every key, its value and its origin.")] = False,
    gpus: Annotated[int | None, typer.Option(min=0, help="Plan as if the machine had so many GPUs.")] = None,
) -> None:
    """Show what `omni run` with the same words would run where, or why it cannot run."""
    loaded = load_config(words or [])
    inventory = visible_devices() if gpus is None else Inventory.imagined(gpus)
    planned = build_plan(loaded, inventory, loaded.config.request.modalities)
    if origins and as_json:
        rows = {line.key: {"value": line.value, "origin": line.origin} for line in explain(loaded, planned)}
        print(json.dumps(rows, ensure_ascii=False, indent=2))
    elif origins:
        lines = explain(loaded, planned)
        stdout().print(
            table(("key", "value", "origin"), ((line.key, _shown(line.value), line.origin) for line in lines))
        )
    elif as_json:
        print(json.dumps(planned.document(), ensure_ascii=False, indent=2))
    else:
        _print(loaded, planned)


def _print(loaded: LoadedConfig, planned: ExecutionPlan) -> None:
    console = stdout()
    model = planned.model
    weights = f"{model.path} ({model.load_format}, {model.dtype})" if model.path else "without weights"
    console.print(f"recipe {planned.recipe}   pipeline {planned.pipeline}   deploy {loaded.origins.choices['deploy']}")
    console.print(f"model {weights}")
    console.print(f"outputs {', '.join(f'{output} from {stage}' for output, stage in planned.outputs.items())}\n")
    header = ("stage", "type", "replicas on devices", "memory", "weights", "KV tokens", "batch", "threads")
    console.print(table(header, (_stage(stage, planned) for stage in planned.stages)))
    console.print()
    console.print(table(("edge", "mode", "connector", "slots", "ring", "because"), _edges(planned)))
    if any(edge.producer != REQUEST for stage in planned.stages for edge in stage.inputs):
        console.print(_MODES)
    if planned.mps_devices:
        console.print(f"\nMPS daemon on {', '.join(map(str, planned.mps_devices))}: its processes run side by side")
    console.print(f"\ndigest {planned.digest}")


def _stage(stage: StagePlan, planned: ExecutionPlan) -> tuple[str, ...]:
    places = [
        "+".join(f"{d} (gpu {planned.physical_devices[d]})" for d in replica.devices) or "cpu"
        for replica in stage.replicas
    ]
    memory = f"{stage.memory_fraction:.0%}" if stage.memory_fraction else "-"
    weights = _size(stage.weight_bytes) if stage.weight_bytes else "-"
    return (
        stage.name, stage.execution_type, ", ".join(places), memory, weights, _kv(stage), str(stage.max_batch),
        str(stage.threads),
    )  # fmt: skip


def _kv(stage: StagePlan) -> str:
    """How many tokens the cache holds; estimated unless the number of blocks was given."""
    if stage.kv is None:
        return "-"
    if not stage.kv.blocks:
        return "known at the start"
    return f"{'' if stage.tuning.kv_blocks else '~'}{stage.kv.tokens:,}"


def _edges(planned: ExecutionPlan) -> Iterator[tuple[str, ...]]:
    edges: dict[tuple[str, str], EdgePlan] = {}
    for stage in planned.stages:
        edges |= {(edge.producer, edge.consumer): edge for edge in (*stage.inputs, *stage.consumers)}
    for edge in edges.values():
        ring = _size(edge.ring_bytes) if edge.ring_bytes else "as the inputs need" if edge.slots else "-"
        ends = f"{edge.producer} -> {edge.consumer}"
        yield ends, edge.mode, edge.connector, str(edge.slots or "-"), ring, edge.reason


def _size(count: int) -> str:
    if count >= 2**30:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
