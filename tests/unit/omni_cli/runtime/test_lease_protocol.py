"""A model check of the lease protocol: orchestrator and ledger over real rings, in any order of what can happen.

A reader here takes its time: it reads in place and releases when it is told to, also after a cancel. Reports lie in
their pipes until they are heard, as those of a process that has died do.
"""

import itertools
import uuid
from collections import Counter, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from omni_cli.runtime.events import LeaseDropped
from stages.config import RingSpec
from stages.connectors.ring import WRITTEN, create_ring, unlink
from stages.connectors.shm import ShmReader, ShmWriter
from stages.events import LeaseReleased, MessageGot, MessagePut, StepReport
from stages.messages import Deliver, Reclaim, StreamMessage
from stages.payload import Payload, Tensor

from .simulation import SimStage, World

SLOTS, RING_BYTES, MESSAGES = 3, 1024, 3
GRAPH, OUTPUTS = {"a": (), "b": ("a",)}, {"sum": "b"}


class RingStage(SimStage):
    """Of `a`: writes `MESSAGES` messages a request into its ring, as there is room. Of `b`: reads them in place."""

    def __init__(self, process, clock, rings):
        super().__init__(process, clock)
        own = rings.get(process)
        self.writer = ShmWriter(own, process, itertools.count()) if own else None
        self.reader = ShmReader(rings.values())
        self.reading = []  # (message, payload)
        self.seq = Counter()
        self.sent = deque()  # reports in the pipe

    def make_ready(self, job):
        """A reader is given all of a stream and does not run before its end."""
        events = super().make_ready(job)
        if self.writer:
            job.todo = deque(["scheduled", "step", *["put b"] * MESSAGES, "finish"])
        return events

    def step(self, uid):
        job = self.jobs[uid]
        if job.todo[0] != "put b":
            return super().step(uid)
        seq = self.seq[uid]
        data = content(self.process, uid, seq)
        found = self.writer.put((Payload(tensors=(Tensor(name="x", dtype="uint8", shape=(len(data),), data=data),)),))
        if found is None:
            return []
        job.todo.popleft()
        self.seq[uid] += 1
        message = StreamMessage(
            uid=uid, producer="a", consumer="b", seq=seq, units=1, eos=seq == MESSAGES - 1, ref=found[0], lease=found[1]
        )
        return [MessagePut(uid=uid, t_ns=self.clock(), message=message)]

    def read(self, command):
        if isinstance(command, Reclaim):
            for lease in command.leases:
                self.writer.reclaim(lease)
            return []
        if isinstance(command, Deliver):
            message = command.message
            self.reading.append((message, self.reader.get(message.ref)))
            job = self.jobs.get(message.uid)
            if job is None:
                return []
            got = MessageGot(uid=message.uid, t_ns=self.clock(), producer="a", seq=message.seq)
            return [got, *(self.make_ready(job) if message.eos else ())]
        return super().read(command)

    def done(self, index):
        """Lets go of one of the messages that it reads, whatever has become of the request."""
        message, payload = self.reading.pop(index)
        payload.tensor("x").data.release()
        return [LeaseReleased(uid=message.uid, t_ns=self.clock(), lease=message.lease)]

    def close(self):
        for _, payload in self.reading:
            payload.tensor("x").data.release()
        self.reader.close()
        if self.writer:
            self.writer.close()


def content(owner, uid, seq):
    """No two messages are alike, nor of one length."""
    return memoryview(bytes(((uid * 16 + seq * 4 + int(owner[-1])) % 251,)) * (200 + 37 * ((uid + seq) % 5)))


class LeaseProtocol(RuleBasedStateMachine):
    @initialize(replicas=st.integers(1, 2))
    def start(self, replicas):
        self.world = World(GRAPH, OUTPUTS, replicas=replicas)
        run = uuid.uuid4().hex[:12]
        self.rings = {
            f"a.{n}": RingSpec(segment=f"omni-{run}-{n}", slots=SLOTS, data_bytes=RING_BYTES, key="k")
            for n in range(replicas)
        }
        self.files = [create_ring(spec) for spec in self.rings.values()]
        self.world.stages = {name: RingStage(name, self.world.tick, self.rings) for name in self.world.stages}
        self.dead, self.uid = [], 0
        self.admit(timed=False)

    def teardown(self):
        if not hasattr(self, "world"):
            return
        try:
            self.finish()
        finally:
            for stage in (*self.world.stages.values(), *self.dead):
                stage.close()
            for file in self.files:
                file.close()
                unlink(file.spec.segment)

    # what can happen

    @precondition(lambda self: len(self.world.orchestrator.lifecycle.requests) < 3)
    @rule(timed=st.booleans())
    def admit(self, timed):
        self.uid += 1
        self.world.admit(self.uid, outputs=("sum",), timeout_s=1e-7 if timed else None)

    @rule(stage=st.integers(0, 3), picks=st.lists(st.integers(0, 1000), min_size=4, max_size=12), heard=st.booleans())
    def act(self, stage, picks, heard):
        """A stage reads commands and goes on for a while; what it says lies in its pipe, or is heard at once."""
        acting = self.stage(stage)
        for pick in picks:
            self.say(acting.act(pick))
            while heard and self.hear_one(acting):
                pass

    @precondition(lambda self: self.readers())
    @rule(pick=st.integers(0, 1000))
    def release(self, pick):
        stage = self.readers()[pick % len(self.readers())]
        self.say(stage.report(*stage.done(pick % len(stage.reading))))

    @rule(stage=st.integers(0, 3))
    def hear(self, stage):
        self.hear_one(self.stage(stage))

    @precondition(lambda self: len(self.world.orchestrator.ledger) and self.world.orchestrator.lifecycle.requests)
    @rule(pick=st.integers(0, 1000))
    def cancel(self, pick):
        live = tuple(self.world.orchestrator.lifecycle.requests)
        self.world.cancel(live[pick % len(live)])

    @precondition(lambda self: len(self.world.orchestrator.ledger))
    @rule()
    def time_passes(self):
        self.world.now += 1000
        self.world.orchestrator.expire()
        self.world.deliver()

    @precondition(lambda self: len(self.world.orchestrator.ledger) and len(self.world.stages) > 1)
    @rule(stage=st.integers(0, 3))
    def kill(self, stage):
        """What it has said is heard first: its pipe is read to the end."""
        victim = self.stage(stage)
        while self.hear_one(victim):
            pass
        self.dead.append(victim)
        self.world.kill(victim.process)

    # what must hold

    @invariant()
    def what_a_live_reader_may_read_is_what_was_written(self):
        for stage in self.world.stages.values() if hasattr(self, "world") else ():
            waiting = [command.message for command in stage.inbox if isinstance(command, Deliver)]
            for message in (*waiting, *(message for message, _ in stage.reading)):
                ring = stage.reader._rings[message.ref.segment]
                slot = ring.slot(message.ref.slot)
                assert (slot.state, slot.lease) == (WRITTEN, message.lease.number)
                held = bytes(ring.data[slot.offset : slot.offset + slot.length])
                assert held == bytes(content(message.lease.owner, message.uid, message.seq))
            for message, payload in stage.reading:
                assert payload.tensor("x").data == content(message.lease.owner, message.uid, message.seq)

    @invariant()
    def a_lease_ends_once(self):
        if hasattr(self, "world"):
            ended = Counter(
                event.lease for _, event in self.world.events if isinstance(event, LeaseReleased | LeaseDropped)
            )
            assert not ended or max(ended.values()) == 1

    def finish(self):
        """Everybody goes on until nothing moves: every request has ended once, and every slot is free again."""
        moved = True
        while moved:
            moved = False
            for stage in tuple(self.world.stages.values()):
                while stage.reading:
                    self.say(stage.report(*stage.done(0)))
                for pick in range(len(stage.jobs) + 1):
                    moved |= bool(stage.inbox)
                    report = stage.act(pick)
                    self.say(report)
                    moved |= report is not None
                moved |= self.hear_one(stage)
        for uid in range(1, self.uid + 1):
            self.world.outcome(uid)
        assert self.world.orchestrator.idle
        assert not self.world.orchestrator.ledger.live()
        for stage in self.world.stages.values():
            assert not stage.jobs
            if stage.writer:
                assert stage.writer.free_slots() == SLOTS
                assert stage.writer._ring.live_slots() == ()
        put = {e.message.lease for _, e in self.world.events if isinstance(e, MessagePut)}
        ended = {e.lease for _, e in self.world.events if isinstance(e, LeaseReleased | LeaseDropped)}
        assert put == ended

    def stage(self, number) -> RingStage:
        return tuple(self.world.stages.values())[number % len(self.world.stages)]

    def readers(self) -> list[RingStage]:
        return [stage for stage in self.world.stages.values() if stage.reading]

    def say(self, report: StepReport | None):
        if report is not None:
            self.world.stages[report.process].sent.append(report)

    def hear_one(self, stage: RingStage) -> bool:
        if not stage.sent:
            return False
        self.world.orchestrator.report(stage.sent.popleft())
        self.world.deliver()
        return True


LeaseProtocol.TestCase.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
TestLeaseProtocol = LeaseProtocol.TestCase
