"""What carries an edge: the GPU's memory where both ends can reach it and tensors lie there, and the reason."""

from dataclasses import replace

import pytest

from omni_cli.errors import PlanError
from omni_cli.plan.build import build_plan
from stages.models.registry import InputContract, StageContract
from tests.unit.omni_cli.plan.fakes import family, load, machine

KEY = "deploy.stages.talker.inputs.thinker.connector"
ON_GPU = ("deploy.stages.thinker.devices=[[0]]", "deploy.stages.code2wav.devices=[[1]]")
BLIND = (0, 1, "they hang on different hubs"), (1, 0, "they hang on different hubs")


def edges(*words, gpus=2, unreachable=()):
    """By their consumer."""
    stages = dict(family().stages)
    fed = {"thinker": InputContract(modes=("complete", "incremental"), on_device=True)}
    stages["talker"] = StageContract(execution_type="llm_ar", inputs=fed, sampled=True)
    loaded = load(*ON_GPU, *words, contracts=lambda name: family(stages=stages))
    plan = build_plan(loaded, replace(machine(gpus), unreachable=unreachable))
    return {edge.consumer: edge for stage in plan.stages for edge in (*stage.inputs, *stage.consumers)}


@pytest.mark.parametrize(
    ("devices", "unreachable", "connector", "reason"),
    [
        ("[[0]]", BLIND, "cuda_ipc", "both on 0"),
        ("[[1]]", (), "cuda_ipc", "0 -> 1 by peer access"),
        ("[[0],[1]]", (), "cuda_ipc", "both on 0, 0 -> 1 by peer access"),
        ("[[1]]", BLIND, "shm", "device 1 cannot read device 0: they hang on different hubs"),
        ("[[1]]", BLIND[:1], "cuda_ipc", "0 -> 1 by peer access"),  # only the consumer reads
        ("[[0],[1]]", BLIND, "shm", "device 1 cannot read device 0: they hang on different hubs"),
        ("cpu", (), "shm", "`talker` is on the CPU"),
    ],
)
def test_the_planner_chooses_by_where_the_two_ends_are(devices, unreachable, connector, reason):
    edge = edges(f"deploy.stages.talker.devices={devices}", unreachable=unreachable)["talker"]
    assert (edge.connector, edge.reason) == (connector, reason)


def test_what_lies_in_host_memory_goes_by_shm_wherever_its_stages_are():
    found = edges("deploy.stages.talker.devices=[[1]]")
    assert (found["code2wav"].connector, found["code2wav"].reason) == ("shm", "no contract asks for more")
    assert (found["request"].connector, found["request"].reason) == ("shm", "to or from the parent")


def test_what_is_configured_holds():
    found = edges(f"{KEY}=shm", "deploy.stages.talker.devices=[[0]]")["talker"]
    assert (found.connector, found.reason) == ("shm", "as configured")
    found = edges("deploy.stages.code2wav.inputs.talker.connector=cuda_ipc", "deploy.stages.talker.devices=[[1]]")
    assert (found["code2wav"].connector, found["code2wav"].reason) == ("cuda_ipc", "as configured")
    assert found["code2wav"].slots > 0
    assert found["code2wav"].ring_bytes > 0


@pytest.mark.parametrize(
    ("words", "unreachable", "parts"),
    [
        ((f"{KEY}=cuda_ipc", "deploy.stages.talker.devices=cpu"), (), (KEY, "`talker` is on the CPU", "set it to shm")),
        (
            (f"{KEY}=cuda_ipc", "deploy.stages.talker.devices=[[1]]"),
            BLIND,
            (KEY, "device 1 cannot read device 0: they hang on different hubs", "give `thinker` and `talker` one"),
        ),
        (
            ("deploy.stages.thinker.inputs.request.connector=cuda_ipc",),
            (),
            ("deploy.stages.thinker.inputs.request.connector", "the parent is one end"),
        ),
        (
            ("deploy.stages.code2wav.output.connector=cuda_ipc",),
            (),
            ("deploy.stages.code2wav.output.connector", "the parent is one end"),
        ),
    ],
)
def test_cuda_ipc_where_it_cannot_be_is_refused_with_the_reason_and_the_remedy(words, unreachable, parts):
    with pytest.raises(PlanError) as caught:
        edges(*words, unreachable=unreachable)
    for part in parts:
        assert part in str(caught.value)
