"""Stages without processes: they answer an orchestrator's commands with the events that a real worker would send.

What a stage does next is the caller's choice, so that a property test can drive every interleaving.
"""

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from omni_cli.plan.model import EdgePlan, ExecutionPlan, ModelPlan, ReplicaPlan, StagePlan
from omni_cli.runtime.media_gate import MediaGate
from omni_cli.runtime.orchestrator import Orchestrator
from omni_cli.runtime.replicas import Condemn, Start
from omni_cli.runtime.request import OmniRequest
from stages.errors import ErrorInfo
from stages.events import (
    InputReady,
    LeaseReleased,
    MessageGot,
    MessagePut,
    OutputProduced,
    ProcessReady,
    Scheduled,
    StageCancelled,
    StageFailed,
    StageFinished,
    StepDone,
    StepReport,
    StepRow,
)
from stages.lease import Lease, first_number
from stages.messages import Cancel, Deliver, Reclaim, StageRequest, StreamMessage, Submit, Turn
from stages.payload import Payload, PayloadRef

LINE = {"thinker": (), "talker": ("thinker",), "code2wav": ("talker",)}
LINE_OUTPUTS = {"text": "thinker", "audio": "code2wav"}
DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("a", "b", "c")}
DIAMOND_OUTPUTS = {"text": "a", "left": "b", "sum": "d"}


def edge(producer: str, consumer: str, mode: str = "complete") -> EdgePlan:
    return EdgePlan(
        producer=producer, consumer=consumer, mode=mode, connector="shm", slots=8, ring_bytes=1 << 20, key="k"
    )


def make_plan(
    graph: dict[str, tuple[str, ...]],
    outputs: dict[str, str],
    replicas: int,
    media: bool,
    modes: Mapping[tuple[str, str], str],
    **more: int | None,
):
    def stage(name: str, producers: tuple[str, ...]) -> StagePlan:
        inputs = [edge(p, name, modes.get((p, name), "complete")) for p in producers]
        if not producers and media:
            inputs = [edge("request", name)]
        return StagePlan(
            name=name,
            execution_type="llm_ar",
            replicas=tuple(ReplicaPlan(index=i, devices=()) for i in range(replicas)),
            memory_fraction=0.0,
            startup_timeout_s=60,
            threads=1,
            inputs=tuple(inputs),
            consumers=tuple(edge(name, c, modes.get((name, c), "complete")) for c, ps in graph.items() if name in ps),
            outputs=tuple(m for m, s in outputs.items() if s == name),
            restart_window_s=600,
            **{"max_batch": 4, **more},
        )

    return ExecutionPlan(
        recipe="test",
        pipeline="test",
        family="synthetic",
        model=ModelPlan(path="", load_format="auto", dtype="float32"),
        stages=tuple(stage(name, producers) for name, producers in graph.items()),
        outputs=outputs,
        media=("image",),
        voices=(),
        physical_devices=(),
        drain_timeout_s=1,
    )


@dataclass
class Job:
    """A request in a simulated stage: `todo` is the rest of its events, in order, once it may run."""

    request: StageRequest
    waiting: set[str]
    todo: deque[str] = field(default_factory=deque)
    ready: bool = False
    delivered: list[Lease] = field(default_factory=list)
    position: int = 0


class SimStage:
    """One life of a replica. `inbox` holds commands that it has not read yet; `held` its ring's slots in use."""

    nbytes = 0  # of a message

    def __init__(self, process: str, clock, generation: int = 0) -> None:
        self.process = process
        self.generation = generation
        self.ready = not generation
        self.stage = process.rpartition(".")[0]
        self.clock = clock
        self.inbox: deque = deque()
        self.jobs: dict[int, Job] = {}
        self.held: set[int] = set()
        self.numbers = itertools.count(first_number(generation))
        self.reports = itertools.count()
        self.steps = itertools.count()
        self.fail_next = False

    def report(self, *events) -> StepReport:
        return StepReport(process=self.process, seq=next(self.reports), events=events, generation=self.generation)

    @property
    def busy(self) -> bool:
        return not self.ready or bool(self.inbox) or any(job.ready for job in self.jobs.values())

    def act(self, pick: int) -> StepReport | None:
        """Gets ready, reads one command, or does one step of one job."""
        if not self.ready:
            self.ready = True
            return self.report(ProcessReady(t_ns=self.clock(), pid=self.generation, facts=()))
        ready = [uid for uid, job in self.jobs.items() if job.ready]
        choices = len(ready) + (1 if self.inbox else 0)
        if not choices:
            return None
        index = pick % choices
        events = self.step(ready[index]) if index < len(ready) else self.read(self.inbox.popleft())
        return self.report(*events) if events else None

    def lease(self) -> Lease:
        number = next(self.numbers)
        self.held.add(number)
        return Lease(owner=self.process, number=number, slot=number)

    def read(self, command) -> list:
        t = self.clock()
        if isinstance(command, Submit):
            job = Job(request=command.request, waiting=set(command.request.inputs))
            self.jobs[command.request.uid] = job
            return self.make_ready(job) if not job.waiting else []
        if isinstance(command, Reclaim):
            for lease in command.leases:
                self.held.remove(lease.number)
            return []
        if isinstance(command, Deliver):
            return self.take(command.message)
        assert isinstance(command, Cancel)
        self.jobs.pop(command.uid, None)
        return [StageCancelled(uid=command.uid, t_ns=t)]

    def take(self, message: StreamMessage) -> list:
        t = self.clock()
        released = [LeaseReleased(uid=message.uid, t_ns=t, lease=message.lease)] if message.lease else []
        job = self.jobs.get(message.uid)
        if job is None:
            return released
        got = [MessageGot(uid=message.uid, t_ns=t, producer=message.producer, seq=message.seq)]
        if message.eos:
            job.waiting.discard(message.producer)
        return got + released + ([] if job.waiting else self.make_ready(job))

    def make_ready(self, job: Job) -> list:
        job.ready = True
        job.todo = deque(["scheduled", "step"])
        job.todo.extend(f"output {m}" for m in job.request.outputs)
        job.todo.extend(f"put {c}" for c in job.request.consumers)
        job.todo.append("finish")
        return [InputReady(uid=job.request.uid, t_ns=self.clock())]

    def step(self, uid: int) -> list:
        job, t = self.jobs[uid], self.clock()
        if self.fail_next:
            self.fail_next = False
            del self.jobs[uid]
            error = ErrorInfo(kind="Boom", message="asked for", fault="server", stage=self.stage)
            return [StageFailed(uid=uid, t_ns=t, error=error)]
        what, _, name = job.todo.popleft().partition(" ")
        if what == "scheduled":
            return [Scheduled(uid=uid, t_ns=t)]
        if what == "step":
            row = StepRow(uid=uid, phase="decode", position=0, units=1)
            return [StepDone(index=next(self.steps), t_ns=t, end_ns=t, rows=(row,))]
        if what == "output":
            return [OutputProduced(uid=uid, t_ns=t, modality=name, seq=0, units=1, eos=True, text=name, reason="stop")]
        if what == "put":
            ref = PayloadRef(tensors=(), meta=(), nbytes=self.nbytes)
            message = StreamMessage(
                uid=uid, producer=self.stage, consumer=name, seq=0, units=1, eos=True, ref=ref, lease=self.lease()
            )
            return [MessagePut(uid=uid, t_ns=t, message=message)]
        del self.jobs[uid]
        return [StageFinished(uid=uid, t_ns=t, reason="stop", units=1)]


class SimPort:
    """An input ring of `slots` slots."""

    def __init__(self, stage: str, slots: int = 2) -> None:
        self.owner = f"request.{stage}"
        self.slots = slots
        self.held: set[int] = set()
        self.numbers = itertools.count()

    def put(self, pieces):
        if len(self.held) == self.slots:
            return None
        number = next(self.numbers)
        self.held.add(number)
        ref = PayloadRef(tensors=(), meta=(), nbytes=7)
        return ref, Lease(owner=self.owner, number=number, slot=number)

    def reclaim(self, lease: Lease) -> None:
        self.held.remove(lease.number)


class World:
    """An orchestrator over simulated stages, a clock that counts, and everything that was heard."""

    modes: Mapping[tuple[str, str], str] = {}  # of the edges that are not `complete`

    def __init__(
        self, graph=LINE, outputs=LINE_OUTPUTS, replicas: int = 1, media: bool = False, **more: int | None
    ) -> None:
        self.now = 0
        self.plan = make_plan(graph, outputs, replicas, media, self.modes, **more)
        self.starts: list[Start] = []  # ordered and not yet carried out
        self.lives = {f"{s.name}.{r.index}": [0] for s in self.plan.stages for r in s.replicas}
        self.over: set[tuple[str, int]] = set()
        self.retired: set[tuple[str, int]] = set()
        self.stages = {process: self.make_stage(process) for process in self.lives}
        self.ports = {
            s.name: SimPort(s.name) for s in self.plan.stages if s.inputs and s.inputs[0].producer == "request"
        }
        self.events: list = []
        self.chunks: list = []
        self.ends: list = []
        self.orchestrator = Orchestrator(
            self.plan,
            clock=self.tick,
            listener=lambda source, event: self.events.append((source, event)),
            media=MediaGate(self.ports),
            output_ports={},
            on_chunk=lambda uid, chunk: self.chunks.append((uid, chunk)),
            on_end=lambda uid, end: self.ends.append((uid, end)),
        )

    def make_stage(self, process: str, generation: int = 0) -> SimStage:
        return SimStage(process, self.tick, generation)

    def tick(self) -> int:
        self.now += 1
        return self.now

    def admit(self, uid: int, outputs=("text", "audio"), media: Payload | None = None, timeout_s=None) -> None:
        request = OmniRequest(
            request_id=f"r{uid}",
            seed=7,
            conversation=(),
            outputs=outputs,
            media=media or Payload(),
            timeout_s=timeout_s,
        )
        self.orchestrator.admit(uid, request)
        self.deliver()

    def deliver(self) -> None:
        for process, turn in self.orchestrator.take_turns().items():
            assert isinstance(turn, Turn)
            self.stages[process].inbox.extend(turn.commands)
        for order in self.orchestrator.replicas.take_orders():
            if isinstance(order, Start):
                self.starts.append(order)
            elif isinstance(order, Condemn):
                self.kill(order.process)
            else:
                life = (order.process, order.generation)
                assert life in self.over, "it lives"
                assert life not in self.retired
                assert not self.orchestrator.ledger.holds(*life), "somebody still reads it"
                self.retired.add(life)

    def act(self, process: str, pick: int = 0) -> bool:
        stage = self.stages.get(process)
        report = stage.act(pick) if stage else None
        if report is not None:
            self.orchestrator.report(report)
        self.deliver()
        return report is not None

    def kill(self, process: str) -> None:
        stage = self.stages.pop(process, None)
        if stage is not None:
            self.over.add((process, stage.generation))
            self.orchestrator.died(process, "killed by SIGKILL")
            self.orchestrator.report(stage.report(StageCancelled(uid=1, t_ns=self.now)))  # read after its death
            self.deliver()

    def start(self, well: bool = True, final: bool = False) -> None:
        """Carries out the next order to start a replica again, or cannot."""
        if not self.starts:
            return
        order = self.starts.pop(0)
        assert order.generation > self.lives[order.process][-1]
        self.lives[order.process].append(order.generation)
        if well:
            self.stages[order.process] = self.make_stage(order.process, order.generation)
            self.orchestrator.replicas.started(order.process, order.generation)
        else:
            self.over.add((order.process, order.generation))
            self.orchestrator.not_started(order.process, order.generation, "no room", final=final)
        self.deliver()

    def cancel(self, uid: int) -> None:
        self.orchestrator.cancel(uid, "asked for")
        self.deliver()

    def run(self) -> None:
        """Until nothing moves any more."""
        while True:
            due_ns = self.orchestrator.replicas.next_due_ns()
            if any(stage.busy for stage in self.stages.values()) or self.starts:
                self.start()
                self.round()
            elif due_ns is not None:
                self.now = max(self.now, due_ns)
                self.deliver()
            else:
                return

    def round(self) -> None:
        for process in tuple(self.stages):
            self.act(process)

    def outcome(self, uid: int) -> str:
        ends = [end.outcome for u, end in self.ends if u == uid]
        assert len(ends) == 1, f"request {uid} ended {len(ends)} times"
        return ends[0]
