"""`cuda_ipc` on GPUs: every tensor arrives as it was put, whoever dies, and the parent opens no context.

On one GPU, and from one to another where there are two. What does not need a GPU is in `unit/stages/connectors`.
"""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from omni_cli.bench.alone import receive
from omni_cli.bench.handover import hand_over, handover_specs
from omni_cli.config.load import load_config
from omni_cli.deployment import deployed
from omni_cli.launch.environment import stage_environment
from omni_cli.launch.process import StageProcess
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import visible_devices
from stages.config import StageSpec
from stages.connectors.ring import create_ring, unlink
from stages.events import LeaseReleased, MessageGot, MessagePut, ProcessReady
from stages.messages import Deliver, Reclaim, Stop, Turn
from stages.models.qwen3_omni.tiny import tiny_checkpoint
from stages.runners.handover import Handover, run_handover
from tests.gpu.busy_handover import run_while_busy
from tests.gpu.launch_gpu_parent import has_context, used_bytes
from tests.integration.engine_run import greedy_request, run_requests
from tests.integration.launch_plans import Heard
from tests.integration.test_qwen3_omni_parity import CONVERSATIONS

pytestmark = pytest.mark.gpu

PHYSICAL = [device.physical for device in visible_devices().devices]
WAYS = {"one GPU": PHYSICAL[:1] * 2, "two GPUs": PHYSICAL[:2]}
PLAN = build_plan(load_config(("recipe=synthetic",)), visible_devices())


@pytest.fixture(params=WAYS)
def devices(request: pytest.FixtureRequest) -> list[str]:
    if len(WAYS[request.param]) < 2:
        pytest.skip(f"needs {request.param}")
    if request.param == "two GPUs" and visible_devices().no_peer_access(1, 0):
        pytest.skip("the two GPUs do not reach each other")
    return WAYS[request.param]


class Bench:
    """Processes of a handover, each on its own, and their rings."""

    def __init__(self) -> None:
        self.files: dict[str, object] = {}
        self.processes: list[StageProcess] = []

    def start(self, spec: StageSpec) -> StageProcess:
        for edge in (*spec.inputs, *spec.consumers):
            for ring in edge.rings:
                if ring.segment not in self.files:
                    self.files[ring.segment] = create_ring(ring)
        environment, _ = stage_environment(spec, os.environ)
        process = StageProcess.spawn(spec, environment, run_handover)
        self.processes.append(process)
        (ready,) = receive(process).events
        assert isinstance(ready, ProcessReady)
        process.send(Turn(commands=(), sent_ns=0))  # who hands over may begin
        return process

    def stop(self) -> None:
        for process in self.processes:
            if not process.join(0):
                process.send(Turn(commands=(Stop(),), sent_ns=0))
            if not process.join(20):
                process.kill()
                process.join(5)
            process.close()
        for segment, file in self.files.items():
            file.close()  # type: ignore[attr-defined]
            unlink(segment)


@pytest.fixture
def bench():  # type: ignore[no-untyped-def]
    found = Bench()
    yield found
    found.stop()


def kill(process: StageProcess) -> None:
    os.kill(process.pid, signal.SIGKILL)
    assert process.join(20)


def next_put(giver: StageProcess) -> MessagePut:
    (put,) = receive(giver).events
    assert isinstance(put, MessagePut)
    assert put.message.ref is not None
    assert put.message.ref.device_nbytes > 0
    return put


def pass_on(put: MessagePut, giver: StageProcess | None, taker: StageProcess) -> bool:
    """Whether the taker has got it; its lease ends either way."""
    taker.send(Turn(commands=(Deliver(message=put.message),), sent_ns=0))
    answers = receive(taker).events
    (released,) = (event for event in answers if isinstance(event, LeaseReleased))
    if giver is not None:
        giver.send(Turn(commands=(Reclaim(leases=(released.lease,)),), sent_ns=0))
    return any(isinstance(event, MessageGot) for event in answers)


def test_r23_every_tensor_arrives_as_it_was_put_under_load(devices: list[str]) -> None:
    """While the device is still at work on it, in slots that are used again and again, up to 16 MiB."""
    before = [has_context(index) for index in range(len(PHYSICAL))]
    work = Handover(sizes=(1, 4096, 1 << 20, 16 << 20), count=100, ahead=4)
    specs = handover_specs(PLAN, "cuda_ipc", work, *devices)
    with Interrupts() as interrupts, deployed(PLAN, interrupts, specs=specs, run_stage=run_while_busy) as deployment:
        giver, taker = deployment.running.replicas
        assert len(list(hand_over(giver, taker, 400))) == 400  # the taker dies of a tensor that is another
    assert deployment.running.live_slots == 0
    assert [has_context(index) for index in range(len(PHYSICAL))] == before


def test_a_consumer_that_is_killed_while_it_reads_leaves_nothing_behind(devices: list[str], bench: Bench) -> None:
    work = Handover(sizes=(8 << 20,), count=40, ahead=4)
    giving, taking = handover_specs(PLAN, "cuda_ipc", work, *devices)
    giver = bench.start(giving)
    for _ in range(2):
        taker = bench.start(taking)
        for _ in range(4):
            assert pass_on(next_put(giver), giver, taker)
        held = next_put(giver)
        taker.send(Turn(commands=(Deliver(message=held.message),), sent_ns=0))
        kill(taker)
        assert held.message.lease is not None
        giver.send(Turn(commands=(Reclaim(leases=(held.message.lease,)),), sent_ns=0))
    last = bench.start(taking)
    for _ in range(30):
        assert pass_on(next_put(giver), giver, last)


def test_a_producer_that_is_killed_spoils_nothing_of_the_one_that_follows(devices: list[str], bench: Bench) -> None:
    """What it had put may still be read, or is not got; its successor has a ring of its own."""
    work = Handover(sizes=(8 << 20,), count=20, ahead=4)
    giving, taking = handover_specs(PLAN, "cuda_ipc", work, *devices)
    (edge,) = giving.consumers
    new = replace(edge, rings=(replace(edge.rings[0], segment=edge.rings[0].segment + "1"),))
    giver = bench.start(giving)
    taker = bench.start(replace(taking, inputs=(replace(edge, rings=(*edge.rings, *new.rings)),)))
    for _ in range(4):
        assert pass_on(next_put(giver), giver, taker)
    put = next_put(giver)
    kill(giver)
    print("after its producer's death a payload is", "got" if pass_on(put, None, taker) else "not got")
    later = bench.start(replace(giving, consumers=(new,), generation=1))
    for _ in range(20):
        assert pass_on(next_put(later), later, taker)


def test_r23_killed_processes_give_the_memory_of_their_gpus_back(devices: list[str], bench: Bench) -> None:
    pynvml.nvmlInit()
    before = [used_bytes(device) for device in set(devices)]
    work = Handover(sizes=(256 << 20,), count=4, ahead=1)
    giver, taker = (bench.start(spec) for spec in handover_specs(PLAN, "cuda_ipc", work, *devices))
    assert pass_on(next_put(giver), giver, taker)
    kill(giver)
    kill(taker)
    after = [used_bytes(device) for device in set(devices)]
    assert all(now - then < 64 << 20 for now, then in zip(after, before, strict=True))


@pytest.mark.skipif(not PHYSICAL, reason="needs a GPU")
def test_qwen3_omni_answers_the_same_over_cuda_ipc_and_over_shm(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path)
    keys = [f"deploy.stages.{stage}" for stage in ("thinker", "talker")]
    small = [f"{key}.{setting}" for key in keys for setting in ("max_batch=4", "step_tokens=256")]
    deploy = f"qwen3_omni/gpu{min(len(PHYSICAL), 2)}"
    words = ["recipe=qwen3_omni", f"deploy={deploy}", f"model.path={folder}", "model.dtype=float32", *small]
    key = "deploy.stages.talker.inputs.thinker.connector"
    before = [has_context(index) for index in range(len(PHYSICAL))]
    runs = {}
    for connector in ("cuda_ipc", "shm"):
        plan = build_plan(load_config([*words, f"{key}={connector}"]), visible_devices())
        heard = Heard()
        asked = [greedy_request(*item, text_tokens=20, codec_tokens=48) for item in CONVERSATIONS.items()]
        runs[connector] = run_requests(plan, asked, heard)
        assert not runs[connector].errors
        assert runs[connector].live_slots == 0
        refs = [put.message.ref for put in heard.of(MessagePut) if isinstance(put, MessagePut)]
        on_device = sum(ref.device_nbytes for ref in refs if ref is not None)
        assert (on_device > 0) == (connector == "cuda_ipc")
    assert [has_context(index) for index in range(len(PHYSICAL))] == before
    for name in CONVERSATIONS:
        ours, theirs = runs["cuda_ipc"], runs["shm"]
        assert ours.outputs[name]["text"].text == theirs.outputs[name]["text"].text
        # another code would be another sound; the rows of a step may differ, and with them the rounding
        assert ours.waveform(name).shape == theirs.waveform(name).shape
        assert float((ours.waveform(name) - theirs.waveform(name)).abs().max()) < 1e-3
