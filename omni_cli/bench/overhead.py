"""All overheads of the machinery, one after the other: control hop, payload, server, throughput, trace."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from omni_cli.bench.effort import Effort
from omni_cli.bench.figure import Measured
from omni_cli.bench.first_event import measure_first_events
from omni_cli.bench.hop import measure_hops
from omni_cli.bench.machine import machine_facts
from omni_cli.bench.throughput import measure_throughput
from omni_cli.bench.transfer import measure_transfers
from omni_cli.bench.workload import WORDS
from omni_cli.config.load import load_config
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory


def measure_overhead(effort: Effort, interrupts: Interrupts, say: Callable[[str], None]) -> Measured:
    """Takes about a minute with full effort. `say` hears how far it is. OmniError if anything does not work."""
    machine = machine_facts(datetime.now().astimezone())
    loaded = load_config(WORDS)
    plan = build_plan(loaded, Inventory())
    one_stage = build_plan(loaded, Inventory(), ("text",))
    say("one control hop")
    hops = measure_hops(one_stage, effort, interrupts)
    say("payloads through shm")
    transfers = measure_transfers(one_stage, effort, interrupts)
    with TemporaryDirectory(prefix="omni-bench-") as folder:
        say("first events, of the server and of the engine")
        firsts = measure_first_events(plan, effort, interrupts, Path(folder))
        throughput = measure_throughput(plan, effort, interrupts, Path(folder), say)
    figures = (*throughput.figures(), *firsts.figures(), *hops.figures(), *(f for t in transfers for f in t.figures()))
    return Measured(digest=plan.digest, machine=machine, figures=figures)
