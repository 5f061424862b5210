"""What a tensor's way from a GPU to another stage's costs, by each connector, beside a copy within the GPU."""

import secrets
from collections.abc import Iterator
from dataclasses import replace

from omni_cli.bench.alone import receive
from omni_cli.bench.figure import Figure
from omni_cli.deployment import deployed
from omni_cli.launch.process import StageProcess
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.devices import Inventory
from omni_cli.plan.model import ExecutionPlan
from omni_cli.plan.spec import stage_spec
from omni_cli.runtime.events import Event
from stages.config import Connector, EdgeSpec, RingSpec, StageSpec
from stages.events import LeaseReleased, MessageGot, MessagePut, ProcessReady
from stages.messages import Deliver, Reclaim, Turn
from stages.runners.handover import Handover, copy_fact, run_handover

SIZES = (4 << 10, 1 << 20, 64 << 20)
_NAMES = {4 << 10: "4 KiB", 1 << 20: "1 MiB", 64 << 20: "64 MiB"}


def handover_specs(plan: ExecutionPlan, connector: Connector, work: Handover, *devices: str) -> list[StageSpec]:
    """The thinker's and the talker's, with one edge between them. `devices` are physical ids; none is the CPU."""
    run_id = secrets.token_hex(4)
    ring = RingSpec(segment=f"omni-{run_id}-0", slots=16, data_bytes=2 * max(work.sizes), key="ring_bytes")
    edge = EdgeSpec(producer="thinker", consumer="talker", mode="incremental", connector=connector, rings=(ring,))
    ends = ("thinker", (), (edge,), devices[:1]), ("talker", (edge,), (), devices[1:])
    return [
        replace(
            stage_spec(plan, stage, 0, run_id), inputs=inputs, consumers=consumers, devices=on, memory_fraction=0.5,
            options=work,
        )
        for stage, inputs, consumers, on in ends
    ]  # fmt: skip


def measure_handovers(plan: ExecutionPlan, inventory: Inventory, count: int, interrupts: Interrupts) -> list[Figure]:
    """On one GPU and, where there are two that reach each other, from one to another. None without a GPU."""
    physical = [device.physical for device in inventory.devices]
    ways = [("on one GPU", physical[:1] * 2)] if physical else []
    if len(physical) > 1 and not inventory.no_peer_access(1, 0):
        ways.append(("from GPU to GPU", physical[:2]))
    found = []
    connectors: tuple[Connector, ...] = ("shm", "cuda_ipc")
    for way, devices in ways:
        for connector in connectors:
            work = Handover(sizes=SIZES, count=count + count // 10)
            copies: dict[str, str] = {}

            def hear(source: str, event: Event, copies: dict[str, str] = copies) -> None:
                copies |= dict(event.facts) if isinstance(event, ProcessReady) else {}

            specs = handover_specs(plan, connector, work, *devices)
            with deployed(plan, interrupts, hear, specs=specs, run_stage=run_handover) as deployment:
                giver, taker = deployment.running.replicas
                samples = list(hand_over(giver, taker, len(SIZES) * work.count))
            for index, size in enumerate(SIZES):
                title, key = f"{_NAMES[size]} {way}", f"{size}_{'one' if devices[0] == devices[1] else 'two'}"
                own = tuple(samples[index * work.count + count // 10 : (index + 1) * work.count])
                found.append(Figure(key=f"{connector}_{key}_us", title=f"{title}, {connector}", unit="us", samples=own))
                if connector == "cuda_ipc" and devices[0] == devices[1]:
                    copy = (float(copies[copy_fact(size)]),)
                    found.append(Figure(key=f"copy_{key}_us", title=f"{title}, a copy", unit="us", samples=copy))
    return found


def hand_over(giver: StageProcess, taker: StageProcess, count: int) -> Iterator[float]:
    """Passes the messages on; from before each put until the taker has its copy, in us. StageFailure if one dies."""
    giver.send(Turn(commands=(), sent_ns=0))
    passed = 0
    while passed < count:
        for event in receive(giver).events:
            if isinstance(event, MessagePut):
                taker.send(Turn(commands=(Deliver(message=event.message),), sent_ns=event.t_ns))
                for answer in receive(taker).events:
                    if isinstance(answer, MessageGot):
                        yield (answer.t_ns - event.t_ns) / 1e3
                    elif isinstance(answer, LeaseReleased):
                        giver.send(Turn(commands=(Reclaim(leases=(answer.lease,)),), sent_ns=answer.t_ns))
                passed += 1
