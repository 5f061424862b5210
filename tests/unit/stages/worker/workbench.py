"""A StageWorker on the bench: in-memory queues and rings, a runner that does as it is told, a clock that counts."""

import itertools
from collections import deque
from dataclasses import dataclass, field

from stages.config import EdgeSpec, ModelSpec, StageSpec, StageTuning
from stages.errors import PayloadTooLarge
from stages.events import LeaseReleased, MessagePut, OutputProduced
from stages.lease import Lease
from stages.messages import REQUEST, Cancel, Deliver, Reclaim, StageRequest, Stop, StreamMessage, Submit, Turn
from stages.payload import Payload, PayloadRef, Tensor, layout, view
from stages.runners.base import Emission, Output, RowResult
from stages.schedulers.registry import create_scheduler
from stages.worker.loop import StageWorker


def payload(data=b"x", name="a"):
    return Payload(tensors=(Tensor(name=name, dtype="uint8", shape=(len(data),), data=memoryview(bytes(data))),))


@dataclass
class MemoryRing:
    """Both ends of an edge, with `slots` slots and `room` bytes a payload."""

    owner: str
    slots: int = 2
    room: int = 1 << 20
    key: str = "deploy.ring"
    numbers: itertools.count = field(default_factory=itertools.count)
    held: dict = field(default_factory=dict)
    closed: bool = False

    def free_slots(self):
        return self.slots - len(self.held)

    def put(self, pieces):
        data = b"".join(bytes(t.data) for piece in pieces for t in piece.tensors)
        if len(data) > self.room:
            raise PayloadTooLarge(f"{len(data)} bytes; make it larger with {self.key}")
        if not self.free_slots():
            return None
        lease = Lease(owner=self.owner, number=next(self.numbers), slot=len(self.held))
        self.held[lease.number] = data
        specs, nbytes = layout((("a", "uint8", (len(data),)),))
        return PayloadRef(tensors=specs, meta=(), nbytes=nbytes, segment="ring", slot=lease.number), lease

    def get(self, ref):
        data = ref.inline if ref.inline is not None else self.held[ref.slot]
        return view(ref.tensors, ref.meta, memoryview(data))

    def reclaim(self, lease):
        del self.held[lease.number]

    def close(self):
        self.closed = True


@dataclass
class ScriptedRunner:
    """Executes the next entry of a request's script: a RowResult's fields, or an error to raise for the whole step."""

    scripts: dict = field(default_factory=dict)
    alive: set = field(default_factory=set)
    fed: list = field(default_factory=list)
    steps: list = field(default_factory=list)
    refuse: dict = field(default_factory=dict)
    feed_error: dict = field(default_factory=dict)
    prompts: dict = field(default_factory=dict)
    preempted: list = field(default_factory=list)
    rows: list = field(default_factory=list)

    def load(self):
        return (("device", "none"),)

    def warm_up(self):
        pass

    def begin(self, request):
        if request.uid in self.refuse:
            raise self.refuse[request.uid]
        self.alive.add(request.uid)

    def feed(self, uid, producer, payload, eos):
        assert uid in self.alive
        if uid in self.feed_error:
            raise self.feed_error[uid]
        self.fed.append((uid, producer, b"".join(bytes(t.data) for t in payload.tensors), eos))

    def prompt_tokens(self, uid):
        return self.prompts.get(uid, 1)

    def kv_capacity(self):
        return None

    def preempt(self, uids):
        self.preempted.append(uids)

    def counters(self):
        return (("rows", len(self.steps[-1])),)

    def execute(self, rows):
        assert {row.uid for row in rows} <= self.alive
        self.rows.append(rows)
        self.steps.append(tuple(row.uid for row in rows))
        results = []
        for row in rows:
            entry = self.scripts[row.uid].popleft()
            if isinstance(entry, Exception):
                raise entry
            results.append(RowResult(**{"uid": row.uid, "units": row.units, **entry}))
        return tuple(results)

    def end(self, uid):
        self.alive.remove(uid)

    def close(self):
        pass


def emits(*consumers, units=1, data=b"x", **more):
    return {
        "emissions": tuple(Emission(consumer=c, units=units, payload=payload(data)) for c in consumers),
        **more,
    }


def says(text, modality="text", **more):
    return {"outputs": (Output(modality=modality, units=1, text=text),), **more}


def hands_over(data, modality="audio", **more):
    return {"outputs": (Output(modality=modality, units=1, payload=payload(data, "audio")),), **more}


class Bench:
    """The worker of `talker.0`: fed by `thinker`, feeding `code2wav` and `singer`, with outputs to the parent."""

    def __init__(
        self, *, modes=("incremental", "incremental"), slots=2, room=1 << 20, execution="llm_ar", max_batch=4, kv=None
    ):
        edges = {c: ("complete" if c == REQUEST else m) for c, m in zip(("code2wav", "singer"), modes, strict=True)}
        edges[REQUEST] = "complete"
        spec = StageSpec(
            run_id="r",
            family="fake",
            stage="talker",
            replica=0,
            generation=0,
            execution_type=execution,
            model=ModelSpec(path="", load_format="dummy", dtype="float32"),
            devices=(),
            max_batch=max_batch,
            memory_fraction=0.0,
            threads=1,
            inputs=(_edge("thinker", "talker", "incremental"), _edge(REQUEST, "talker", "complete")),
            consumers=tuple(_edge("talker", consumer, mode) for consumer, mode in edges.items()),
            outputs=("text", "audio"),
        )
        numbers = itertools.count()
        self.rings = {c: MemoryRing("talker.0", slots, room, f"deploy.{c}.ring_bytes", numbers) for c in edges}
        self.sources = {"thinker": MemoryRing("thinker.0", 1000), REQUEST: MemoryRing("request.talker", 1000)}
        self.runner = ScriptedRunner()
        tuning = StageTuning(step_tokens=8)
        self.scheduler = create_scheduler(execution, max_batch, tuning=tuning, kv=kv, stage="talker")
        ticks = itertools.count()
        self.worker = StageWorker(spec, self.runner, self.scheduler, self.sources, self.rings, lambda: next(ticks))
        self.events = []
        self.unreleased = set()

    def submit(self, uid, *script, inputs=(), consumers=(), outputs=(), prompt=1):
        self.runner.prompts[uid] = prompt
        self.runner.scripts[uid] = deque(script)
        request = StageRequest(uid=uid, seed=0, inputs=inputs, consumers=consumers, outputs=outputs)
        return self.tell(Submit(request=request))

    def deliver(self, uid, seq, *, units=1, eos=False, data=b"d", producer="thinker"):
        ref = lease = None
        if data is not None:
            ref, lease = self.sources[producer].put([payload(data)])
            self.unreleased.add(lease)
        message = StreamMessage(
            uid=uid, producer=producer, consumer="talker", seq=seq, units=units, eos=eos, ref=ref, lease=lease
        )
        return self.tell(Deliver(message=message))

    def reclaim(self, *leases):
        return self.tell(Reclaim(leases=leases))

    def cancel(self, uid):
        return self.tell(Cancel(uid=uid))

    def tell(self, *commands):
        self.worker.apply(Turn(commands=commands, sent_ns=0))
        return self.collect()

    def step(self):
        assert self.worker.step()
        return self.collect()

    def run(self):
        """Steps until nothing can run; the events of all steps."""
        events = []
        while self.worker.step():
            events += self.collect()
        return events

    def collect(self):
        report = self.worker.take_report()
        events = list(report.events) if report else []
        for event in events:
            if isinstance(event, LeaseReleased):
                self.unreleased.remove(event.lease)
        self.events += events
        return events

    def assert_nothing_left(self):
        """No request, no state of the model, no unreleased lease; slots are held only by what was put."""
        assert not self.runner.alive
        assert len(self.scheduler) == 0
        assert not self.unreleased
        for part in (self.worker._requests, self.worker._inputs._expected, self.worker._outputs._sending):
            assert not part
        assert not self.worker._outputs._waiting


def _edge(producer, consumer, mode):
    return EdgeSpec(producer=producer, consumer=consumer, mode=mode, connector="shm", rings=())


def names(events):
    return [type(event).__name__ for event in events]


def of(events, kind):
    return [event for event in events if type(event).__name__ == kind]


def messages(events):
    """(consumer, seq, units, eos, has payload) of each message put."""
    return [
        (e.message.consumer, e.message.seq, e.message.units, e.message.eos, e.message.ref is not None)
        for e in events
        if isinstance(e, MessagePut)
    ]


def pieces(events):
    """(modality, seq, text, eos, reason) of each piece of a final output."""
    return [(e.modality, e.seq, e.text, e.eos, e.reason) for e in events if isinstance(e, OutputProduced)]


def leases(events):
    """The leases granted by what was put."""
    found = [e.message.lease for e in events if isinstance(e, MessagePut)]
    found += [e.lease for e in events if isinstance(e, OutputProduced)]
    return [lease for lease in found if lease is not None]


class Queue:
    """An in-memory inbox or outbox. `get` of nothing is the end of the pipe."""

    def __init__(self, *items):
        self.items = deque(items)
        self.waits = 0

    def get(self):
        if not self.items:
            raise EOFError
        return self.items.popleft()

    def empty(self):
        return not self.items

    def put(self, item):
        self.items.append(item)


def turn(*commands):
    return Turn(commands=commands, sent_ns=0)


STOP = turn(Stop())
