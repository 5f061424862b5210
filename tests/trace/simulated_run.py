"""A run without processes whose events are a whole trace: a real orchestrator over simulated streaming stages.

It is driven by a seeded random order of whatever can happen next, so that requests and stages overlap.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.events import CONTROL, ProcessDead, ProcessStarted, RunFinished, RunStarted
from omni_cli.trace.codec import SCHEMA, TraceEvent
from stages.errors import ErrorInfo
from stages.events import (
    InputReady,
    LeaseReleased,
    MessageGot,
    MessagePut,
    OutputProduced,
    ProcessReady,
    Scheduled,
    StageFailed,
    StageFinished,
    StageIdle,
    StepDone,
    StepReport,
    StepRow,
)
from stages.lease import Lease
from stages.messages import Reclaim, StreamMessage, Submit
from stages.payload import Payload, PayloadRef, TensorSpec
from tests.unit.omni_cli.runtime.simulation import Job, SimStage, World

UNITS = 3  # steps of a request in every stage, one unit each


@dataclass
class StreamJob(Job):
    come: dict[str, int] = field(default_factory=dict)  # units by producer whose stream has not ended


class StreamStage(SimStage):
    """Steps over all its runnable requests at once, and streams on its incremental edges.

    Payloads go through a ring on edges to a consumer in `shm` and for audio, inline otherwise.
    """

    modes: dict[tuple[str, str], str]
    shm: frozenset[str]

    occupied = False

    def report(self, *events) -> StepReport:
        if self.occupied and not self.jobs:
            self.occupied = False
            events = (*events, StageIdle(t_ns=self.clock(), gauges=(("requests", 0),)))
        return super().report(*events)

    @property
    def busy(self) -> bool:
        return not self.ready or bool(self.inbox) or any(self.runnable(job) for job in self.jobs.values())

    def runnable(self, job: StreamJob) -> bool:
        return job.ready and job.position < min(job.come.values(), default=UNITS)

    def act(self, pick: int) -> StepReport | None:
        if not self.ready:
            return super().act(pick)
        runnable = [uid for uid, job in self.jobs.items() if self.runnable(job)]
        if runnable and (pick % 2 or not self.inbox):
            return self.report(*self.step_all(runnable[:4]))
        events = self.read(self.inbox.popleft()) if self.inbox else []
        return self.report(*events) if events else None

    def read(self, command) -> list:
        if isinstance(command, Reclaim):
            self.held.difference_update(lease.slot for lease in command.leases)
            return []
        if isinstance(command, Submit):
            request = command.request
            self.occupied = True
            job = StreamJob(request=request, waiting=set(request.inputs), come=dict.fromkeys(request.inputs, 0))
            self.jobs[request.uid] = job
            return [] if job.waiting else self.make_ready(job)
        return super().read(command)

    def take(self, message: StreamMessage) -> list:
        uid, job = message.uid, self.jobs.get(message.uid)
        events: list = []
        if job is not None:
            events.append(MessageGot(uid=uid, t_ns=self.clock(), producer=message.producer, seq=message.seq))
        if message.lease is not None:
            events.append(LeaseReleased(uid=uid, t_ns=self.clock(), lease=message.lease))
        if job is None:
            return events
        if message.eos:
            del job.come[message.producer]
        else:
            job.come[message.producer] += message.units
        if message.eos or self.modes.get((message.producer, self.stage)) == "incremental":
            job.waiting.discard(message.producer)
        return events + (self.make_ready(job) if not job.waiting and not job.ready else [])

    def make_ready(self, job: Job) -> list:
        job.ready = True
        return [InputReady(uid=job.request.uid, t_ns=self.clock())]

    def step_all(self, uids: list[int]) -> list:
        jobs = [self.jobs[uid] for uid in uids]
        events: list = [Scheduled(uid=j.request.uid, t_ns=self.clock()) for j in jobs if j.position == 0]
        start, rows = self.clock(), []
        for job in jobs:
            rows.append(StepRow(uid=job.request.uid, phase="decode", position=job.position, units=1))
            job.position += 1
        events.append(StepDone(index=next(self.steps), t_ns=start, end_ns=self.clock(), rows=tuple(rows)))
        if self.fail_next:
            self.fail_next = False
            uid = jobs.pop().request.uid
            del self.jobs[uid]
            error = ErrorInfo(kind="Boom", message="asked for", fault="server", stage=self.stage, trace='at "x"\n')
            events.append(StageFailed(uid=uid, t_ns=self.clock(), error=error))
        for job in jobs:
            events += self.results(job)
        return events

    def results(self, job: Job) -> list:
        uid, seq, last = job.request.uid, job.position - 1, job.position == UNITS
        events: list = []
        for modality in job.request.outputs:
            piece = {"uid": uid, "t_ns": self.clock(), "modality": modality, "seq": seq, "units": 1, "eos": last}
            if modality in ("audio", "sum"):
                piece["ref"], piece["lease"] = self.payload("audio", "request", ring=True)
            events.append(OutputProduced(**piece, text="ö", reason="stop" if last else None))
        for consumer in job.request.consumers:
            streams = self.modes[self.stage, consumer] == "incremental"
            if not streams and not last:
                continue
            ref, lease = self.payload("codes", consumer, ring=consumer in self.shm)
            message = {
                "uid": uid,
                "producer": self.stage,
                "consumer": consumer,
                "eos": last,
                "ref": ref,
                "lease": lease,
            }
            count = {"seq": seq, "units": 1} if streams else {"seq": 0, "units": UNITS}
            events.append(MessagePut(uid=uid, t_ns=self.clock(), message=StreamMessage(**message, **count)))
        if last:
            del self.jobs[uid]
            events.append(StageFinished(uid=uid, t_ns=self.clock(), reason="stop", units=UNITS))
        return events

    def payload(self, name: str, consumer: str, ring: bool) -> tuple[PayloadRef, Lease | None]:
        what = {
            "tensors": (TensorSpec(name=name, dtype="int16", shape=(1920,), offset=0),),
            "meta": (("sample_rate_hz", 24000),),
            "nbytes": 3840,
        }
        if not ring:
            return PayloadRef(**what, inline=bytes(3840)), None
        slot = next(slot for slot in range(1000) if slot not in self.held)
        self.held.add(slot)
        lease = Lease(owner=self.process, number=next(self.numbers), slot=slot)
        return PayloadRef(**what, segment=f"omni-{self.process}-{consumer}", slot=slot), lease


class TraceOfPlan(list[TraceEvent]):
    """The lines, and the plan that they were made by."""

    def __init__(self, lines: Iterable[TraceEvent], plan: ExecutionPlan) -> None:
        super().__init__(lines)
        self.plan = plan


class AudioPort:
    def get(self, ref: PayloadRef) -> Payload:
        return Payload()


class SimulatedRun(World):
    """`finish` lets everything end, adds the last events and gives the trace."""

    def __init__(
        self, graph, outputs, *, incremental: bool, seed: int, replicas: int = 1, media: bool = False, **more: int
    ) -> None:
        self.random = random.Random(seed)
        modes = self.modes = {
            (producer, consumer): "incremental" if incremental and consumer != "talker" else "complete"
            for consumer, producers in graph.items()
            for producer in producers
        }
        super().__init__(graph, outputs, replicas, media, **more)
        self.orchestrator._output_ports = {process: AudioPort() for process in self.stages}
        started = RunStarted(
            t_ns=self.tick(),
            schema=SCHEMA,
            run_id="r",
            recipe="test",
            plan_digest=self.plan.digest,
            stages=tuple(graph),
            edges=tuple((producer, consumer, mode) for (producer, consumer), mode in modes.items()),
            outputs=tuple(outputs.items()),
            wall_time="2025-01-01T00:00:00+00:00",
        )
        self.events.append((CONTROL, started))
        for pid, process in enumerate(self.stages):
            self.events.append((CONTROL, ProcessStarted(t_ns=self.tick(), process=process, generation=0, pid=pid)))
        for pid, process in enumerate(self.stages):
            self.events.append((process, ProcessReady(t_ns=self.tick(), pid=pid, facts=(("device", "cpu"),))))

    def make_stage(self, process: str, generation: int = 0) -> StreamStage:
        stage = StreamStage(process, self.tick, generation)
        stage.modes, stage.shm = self.modes, frozenset({"talker", "b", "d"})
        if generation:
            started = ProcessStarted(t_ns=self.tick(), process=process, generation=generation, pid=generation)
            self.events.append((CONTROL, started))
        return stage

    def some(self, acts: int) -> None:
        """Lets that many things happen, in a random order."""
        for _ in range(acts if self.stages else 0):
            self.act(self.random.choice(tuple(self.stages)), self.random.randrange(1000))

    def round(self) -> None:
        self.some(20)

    def finish(self) -> TraceOfPlan:
        self.run()
        assert self.orchestrator.idle
        for process in self.stages:
            self.events.append(
                (CONTROL, ProcessDead(t_ns=self.tick(), process=process, expected=True, cause="exit code 0"))
            )
        self.events.append((CONTROL, RunFinished(t_ns=self.tick(), live_slots=0, events=len(self.events))))
        lines = (TraceEvent(source=source, ordinal=n, event=event) for n, (source, event) in enumerate(self.events))
        return TraceOfPlan(lines, self.plan)
