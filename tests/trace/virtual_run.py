"""A whole deployment of a synthetic pipeline in one thread, under virtual time: real orchestrator, workers, schedulers
and runners. A step takes what its sleeps take and a price a row; a message between two processes takes `HOP_NS`.

Two runs of one deployment are equal to the nanosecond, so that predictions can be held against them.
"""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from omni_cli.config.load import load_config
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory
from omni_cli.plan.model import ExecutionPlan
from omni_cli.plan.spec import stage_specs
from omni_cli.runtime.events import CONTROL
from omni_cli.runtime.media_gate import MediaGate
from omni_cli.runtime.orchestrator import Orchestrator
from omni_cli.runtime.request import OmniRequest
from omni_cli.trace.codec import TraceEvent
from omni_cli.trace.frame import run_started
from stages.config import StageSpec
from stages.connectors.inline import InlineReader
from stages.messages import ChatMessage, Part
from stages.models.registry import build_runner, contract
from stages.schedulers.registry import create_scheduler
from stages.worker.loop import StageWorker
from tests.unit.stages.models.synthetic.pipeline import Unbounded

HOP_NS = 200_000
ROW_NS = 100_000


@dataclass
class Process:
    """A stage process; `now_ns` is how far it has come, never behind what it is told."""

    spec: StageSpec
    now_ns: int = 0
    inbox: deque = field(default_factory=deque)

    def __post_init__(self) -> None:
        made = contract(self.spec.family).stages[self.spec.stage]
        runner = type(build_runner(self.spec))(self.spec, self.sleep)
        execute = runner.execute

        def priced(rows):
            self.now_ns += ROW_NS * len(rows)
            return execute(rows)

        runner.execute = priced
        scheduler = create_scheduler(
            self.spec.execution_type, self.spec.max_batch, made.max_units_a_row, tuning=self.spec.tuning,
            kv=runner.kv_capacity(),
        )  # fmt: skip
        readers = {edge.producer: InlineReader() for edge in self.spec.inputs}
        writers = {edge.consumer: Unbounded() for edge in self.spec.consumers}
        self.worker = StageWorker(self.spec, runner, scheduler, readers, writers, lambda: self.now_ns)

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


class VirtualRun:
    """Runs on construction: `callers` ask for `requests` answers in all, the n-th of `words(n)` words."""

    def __init__(self, *overrides: str, callers: int, requests: int, words=lambda number: 4) -> None:
        self.loaded = load_config(("recipe=synthetic", *overrides))
        self.plan: ExecutionPlan = build_plan(self.loaded, Inventory(devices=()))
        self._words = words
        self._numbers = iter(range(1, requests + 1))
        self._order, self._events, self.trace = itertools.count(), [], []
        self.now_ns = 1
        started = run_started(self.plan, "r", datetime(2025, 1, 1, tzinfo=UTC))
        self._hear(CONTROL, replace(started, t_ns=self.now_ns))
        self._processes = {spec.process: Process(spec) for spec in stage_specs(self.plan, "r")}
        self._orchestrator = Orchestrator(
            self.plan, clock=lambda: self.now_ns, listener=self._hear, media=MediaGate({}), output_ports={},
            on_chunk=lambda uid, chunk: None, on_end=lambda uid, end: self._at(self.now_ns, self._ask),
        )  # fmt: skip
        for _ in range(callers):
            self._at(self.now_ns, self._ask)
        while self._events:
            self.now_ns, _, act = heapq.heappop(self._events)
            act()
            self._tell()

    def _hear(self, source: str, event) -> None:
        self.trace.append(TraceEvent(source=source, ordinal=len(self.trace), event=event))

    def _at(self, t_ns: int, act) -> None:
        heapq.heappush(self._events, (t_ns, next(self._order), act))

    def _ask(self) -> None:
        number = next(self._numbers, None)
        if number is None:
            return
        text = " ".join("abcdefgh"[:3] for _ in range(self._words(number)))
        said = (ChatMessage(role="user", parts=(Part(kind="text", text=text),)),)
        request = OmniRequest(
            request_id=f"r{number}", seed=7, conversation=said, outputs=("text", "audio"), options=self.loaded.options
        )
        self._orchestrator.admit(number, request)

    def _tell(self) -> None:
        for name, turn in self._orchestrator.take_turns().items():
            self._processes[name].inbox.append((self.now_ns + HOP_NS, turn))
            self._wake(name, self.now_ns + HOP_NS)

    def _wake(self, name: str, t_ns: int) -> None:
        self._at(t_ns, lambda: self._work(name))

    def _work(self, name: str) -> None:
        process = self._processes[name]
        if process.now_ns > self.now_ns:
            return  # in a step, at whose end it looks again
        process.now_ns = self.now_ns
        while process.inbox and process.inbox[0][0] <= self.now_ns:
            process.worker.apply(process.inbox.popleft()[1])
        busy = process.worker.step()
        report = process.worker.take_report()
        if report is not None:
            self._at(process.now_ns + HOP_NS, lambda: self._orchestrator.report(report))
        if busy:
            self._wake(name, process.now_ns)
