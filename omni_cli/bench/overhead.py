"""All overheads of the machinery, one after the other: control hop, payload, server, throughput, trace."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from omni_cli.bench.first_event import measure_first_events
from omni_cli.bench.handover import measure_handovers
from omni_cli.bench.message import measure_hops, measure_transfers
from omni_cli.bench.prepared import machine_facts
from omni_cli.bench.report import Report, aims
from omni_cli.bench.throughput import WORDS, measure_throughput
from omni_cli.config.load import load_config
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory, visible_devices
from omni_cli.streams import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured: `pairs` of blocks of `requests` each, with the trace and without; `hops` each way;
    `transfers` of a payload; `firsts` of requests, each to the server and to the engine.

    Less gives the same figures with more noise. What comes first, until everything is warm, is not counted: a block, a
    tenth of everything else.
    """

    pairs: int
    requests: int
    hops: int
    transfers: int
    firsts: int


FULL = Effort(pairs=60, requests=256, hops=4000, transfers=100, firsts=400)
QUICK = Effort(pairs=2, requests=64, hops=200, transfers=10, firsts=20)


def measure_overhead(effort: Effort, interrupts: Interrupts, command: str) -> Report:
    """Takes about a minute with full effort. `command` repeats it. OmniError if anything does not work."""
    machine = machine_facts(datetime.now().astimezone())
    loaded = load_config(WORDS)
    plan = build_plan(loaded, Inventory())
    one_stage = build_plan(loaded, Inventory(), ("text",))
    say("one control hop")
    hops = measure_hops(one_stage, effort.hops, interrupts)
    say("payloads through shm")
    transfers = measure_transfers(one_stage, effort.transfers, interrupts)
    inventory = visible_devices()
    if inventory:
        say("tensors from stage to stage on a GPU")
    transfers += measure_handovers(plan, inventory, effort.transfers, interrupts)
    with TemporaryDirectory(prefix="omni-bench-") as folder:
        say("first events, of the server and of the engine")
        firsts = measure_first_events(plan, effort.firsts, interrupts, Path(folder))
        throughput = measure_throughput(plan, effort.pairs, effort.requests, interrupts, Path(folder))
    figures = (*throughput, *firsts, *hops, *transfers)
    return Report(
        command=command,
        name="omni bench overhead",
        digest=plan.digest,
        machine=machine,
        tables=[aims(figures)],
        details={"figures": {figure.key: figure.document() for figure in figures}},
    )
