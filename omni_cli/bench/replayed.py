"""How fast a trace is gone through once more: read, checked and decided again in one pass."""

import time
from pathlib import Path

from omni_cli.bench.figure import Aim, Figure
from omni_cli.errors import TraceError
from omni_cli.plan.model import ExecutionPlan
from omni_cli.trace.check import Checked
from omni_cli.trace.reader import TraceReader
from omni_cli.trace.replay import Replay

SLICE = 5000  # lines a sample
AIM = Aim(kind="at least", limit=20_000.0)


def measure_replay(plan: ExecutionPlan, path: Path) -> Figure:
    """In CPU time, as a replay waits for nothing. TraceError if the trace is not clean, or decided otherwise."""
    checked = Checked(TraceReader(path))
    replay = Replay(plan, checked)
    rates: list[float] = []
    line, since_s = 0, time.process_time()
    for _ in replay.steps():
        lines = replay.script.line - line
        if lines >= SLICE or replay.script.head is None:
            now_s = time.process_time()
            rates.append(lines / (now_s - since_s))
            line, since_s = replay.script.line, now_s
    for finding in checked.findings:
        raise TraceError(f"the trace of the benchmark itself is not clean: line {finding.line}: {finding.text}")
    for divergence in replay.divergences:
        raise TraceError(f"the trace of the benchmark itself is decided otherwise in line {divergence.line}")
    return Figure(
        key="replay_events_per_s", title="replay, of CPU time", unit="events/s", samples=tuple(rates), aim=AIM
    )
