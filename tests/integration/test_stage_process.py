"""The stage processes of `synthetic` by themselves: real spawn, real pipes, real rings, and a test for a parent."""

import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
import time
import uuid
from array import array
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest

from omni_cli.launch.environment import starting
from stages.config import EdgeSpec, ModelSpec, RingSpec, StageSpec
from stages.connectors.registry import open_reader, open_writer
from stages.connectors.ring import create_ring, live_slots, ring_path, unlink
from stages.events import (
    LeaseReleased,
    MessagePut,
    OutputProduced,
    ProcessReady,
    StageFailed,
    StageFinished,
    StepDone,
    StepReport,
)
from stages.messages import (
    REQUEST,
    Cancel,
    ChatMessage,
    Deliver,
    LogLine,
    Part,
    ProcessFailed,
    Reclaim,
    StageRequest,
    Stop,
    StreamMessage,
    Submit,
    Turn,
)
from stages.models.synthetic.options import Fail, SyntheticOptions
from stages.payload import Payload, Tensor
from stages.worker.bootstrap import run_stage_process
from tests.integration.stage_modules import run_and_list_modules
from tests.synthetic_answers import expected_audio

STAGES = ("thinker", "talker", "code2wav")
TYPES = {"thinker": "llm_ar", "talker": "llm_ar", "code2wav": "llm_generation"}
HEAVY = {"torch", "transformers", "numpy", "pydantic", "omni_cli", "typer", "hydra", "fastapi"}


class Child:
    """One stage process, and the parent's ends of its pipes."""

    def __init__(self, spec, target=run_stage_process):
        context = multiprocessing.get_context("spawn")
        self.spec = spec
        inbox, self._to = context.Pipe(duplex=False)
        self._from, outbox = context.Pipe(duplex=False)
        self.process = context.Process(target=target, args=(spec, inbox, outbox, os.getpid()), daemon=True)
        with starting({}):  # or spawn would import the test runner in it
            self.process.start()
        inbox.close()
        outbox.close()
        self.logs = []

    def send(self, *commands):
        self._to.send_bytes(pickle.dumps(Turn(commands=commands, sent_ns=0)))

    def receive(self):
        """The next report; log lines are kept apart. EOFError at the end of the pipe."""
        while True:
            assert self._from.poll(20), f"{self.spec.process} is silent"
            message = pickle.loads(self._from.recv_bytes())
            if not isinstance(message, LogLine):
                return message
            self.logs.append(message)

    def close_inbox(self):
        self._to.close()

    def end(self):
        """Reads to the end of the pipe and reaps the process: its exit code."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                self.receive()
        self.process.join(20)
        return self.process.exitcode


class Line:
    """Three stages with rings between them, the parent's media ring and the output ring of the last."""

    def __init__(self, mode="complete", slots=8, ring_bytes=1 << 20, options=None):
        self.run_id = f"test-{uuid.uuid4().hex[:10]}"
        self._cleanup = ExitStack()
        chain = (REQUEST, *STAGES, REQUEST)
        self.edges = [
            EdgeSpec(
                producer=producer,
                consumer=consumer,
                mode="complete" if REQUEST in (producer, consumer) else mode,
                connector="shm",
                rings=(self._ring(f"{producer}-{consumer}", 16 if producer == REQUEST else slots, ring_bytes),),
            )
            for producer, consumer in itertools.pairwise(chain)
        ]
        self.media = open_writer(self.edges[0], "request.thinker", itertools.count())
        self.results = open_reader(self.edges[-1])
        self._cleanup.callback(self.media.close)
        self._cleanup.callback(self.results.close)
        self.children = {name: Child(self.spec(name, options)) for name in STAGES}
        self.outputs = defaultdict(list)
        self.finished, self.failed = defaultdict(dict), {}

    def _ring(self, name, slots, data_bytes):
        ring = RingSpec(segment=f"omni-{self.run_id}-{name}", slots=slots, data_bytes=data_bytes, key="ring_bytes")
        self._cleanup.callback(create_ring(ring).close)
        self._cleanup.callback(unlink, ring.segment)
        return ring

    def spec(self, name, options):
        index = STAGES.index(name)
        consumers = self.edges[index + 1 : index + 2]
        return StageSpec(
            run_id=self.run_id,
            family="synthetic",
            stage=name,
            replica=0,
            generation=1,
            execution_type=TYPES[name],
            model=ModelSpec(path="", load_format="dummy", dtype="float32"),
            devices=(),
            max_batch=8,
            memory_fraction=0.0,
            threads=1,
            inputs=(self.edges[index],),
            consumers=tuple(consumers),
            outputs={"thinker": ("text",), "code2wav": ("audio",)}.get(name, ()),
            options=options,
        )

    def ready(self):
        facts = {}
        for name, child in self.children.items():
            (event,) = child.receive().events
            assert isinstance(event, ProcessReady)
            assert event.pid == child.process.pid
            facts[name] = dict(event.facts)
        return facts

    def submit(self, uid, text, seed, media=b""):
        for name in STAGES:
            index = STAGES.index(name)
            parts = (Part(kind="text", text=text), Part(kind="image", media="m"))[: 2 if media else 1]
            inputs = (STAGES[index - 1],) if index else (REQUEST,) if media else ()
            request = StageRequest(
                uid=uid,
                seed=seed,
                inputs=inputs,
                consumers=STAGES[index + 1 : index + 2],
                outputs={"thinker": ("text",), "code2wav": ("audio",)}.get(name, ()),
                conversation=() if index else (ChatMessage(role="user", parts=parts),),
            )
            self.children[name].send(Submit(request=request))
        if media:
            tensor = Tensor(name="m", dtype="uint8", shape=(len(media),), data=memoryview(media))
            ref, lease = self.media.put([Payload(tensors=(tensor,))])
            message = StreamMessage(
                uid=uid, producer=REQUEST, consumer="thinker", seq=0, units=0, eos=True, ref=ref, lease=lease
            )
            self.children["thinker"].send(Deliver(message=message))

    def drive(self, uids):
        """Routes until every request has ended in every stage."""
        while not all(uid in self.failed or set(self.finished[uid]) == set(STAGES) for uid in uids):
            ready = multiprocessing.connection.wait([c._from for c in self.children.values()], timeout=20)
            assert ready, "nothing happens any more"
            for name, child in self.children.items():
                if child._from in ready:
                    self._take(name, child.receive())

    def _take(self, name, report):
        assert isinstance(report, StepReport), report
        for event in report.events:
            match event:
                case MessagePut(message=message):
                    self.children[message.consumer].send(Deliver(message=message))
                case LeaseReleased(lease=lease) if lease.owner == "request.thinker":
                    self.media.reclaim(lease)
                case LeaseReleased(lease=lease):
                    self.children[lease.owner.partition(".")[0]].send(Reclaim(leases=(lease,)))
                case OutputProduced():
                    data = event.text
                    if event.ref is not None:
                        data = bytes(self.results.get(event.ref).tensor("audio").data)
                    self.outputs[event.uid, event.modality].append((event, data))
                    if event.lease is not None:
                        self.children[name].send(Reclaim(leases=(event.lease,)))
                case StageFinished():
                    self.finished[event.uid][name] = event.reason
                case StageFailed():
                    self.failed[event.uid] = event.error
                    for child in self.children.values():
                        child.send(Cancel(uid=event.uid))

    def text(self, uid):
        return "".join(data for _, data in self.outputs[uid, "text"])

    def sound(self, uid):
        whole = array("f")
        for event, data in self.outputs[uid, "audio"]:
            if event.ref is not None:
                whole.frombytes(data)
        return whole

    def stop(self):
        """Stops all stages: their exit codes, and the rings' slots that are still held."""
        for child in self.children.values():
            child.send(Stop())
        codes = [child.end() for child in self.children.values()]
        return codes, [live_slots(edge.rings[0].segment) for edge in self.edges]

    def close(self):
        for child in self.children.values():
            child.process.kill()
            child.process.join()
        self._cleanup.close()
        assert not any(os.path.exists(ring_path(edge.rings[0].segment)) for edge in self.edges)


@pytest.fixture
def line(request):
    line = Line(**getattr(request, "param", {}))
    yield line
    line.close()


@pytest.mark.parametrize("line", [{"mode": "complete"}, {"mode": "incremental", "slots": 2}], indirect=True)
def test_requests_go_through_three_processes_and_leave_nothing(line):
    line.ready()
    texts = {uid: f"request {uid} says 你好 🙂" for uid in range(12)}
    for uid, text in texts.items():
        line.submit(uid, text, seed=uid, media=b"" if uid % 3 else bytes([uid]) * 100_000)
    line.drive(texts)
    assert not line.failed
    for uid, text in texts.items():
        said = line.text(uid)
        assert said.startswith(text)
        assert ("[image:" in said) == (uid % 3 == 0)
        assert line.sound(uid) == expected_audio(said, uid)
    codes, slots = line.stop()
    assert codes == [0, 0, 0]
    assert not any(slots)
    for child in line.children.values():  # it says what it loaded, and has nothing to complain of
        assert [entry.text.partition(":")[0] for entry in child.logs] == ["loaded"]


def test_a_failure_in_one_stage_is_reported_and_the_next_request_passes():
    line = Line(options=SyntheticOptions(fail=Fail(stage="talker", at=2, kind="oom", times=1)))
    try:
        line.ready()
        line.submit(1, "one two", seed=0)
        line.drive([1])
        assert (line.failed[1].kind, line.failed[1].stage) == ("MemoryError", "talker")
        line.submit(2, "one two", seed=0)
        line.drive([2])
        assert line.sound(2) == expected_audio("one two", 0)
        codes, slots = line.stop()
        assert codes == [0, 0, 0]
        assert not any(slots)
    finally:
        line.close()


def test_a_killed_stage_is_the_end_of_its_pipe_within_milliseconds(line):
    line.ready()
    child = line.children["talker"]
    start = time.monotonic()
    os.kill(child.process.pid, signal.SIGKILL)
    assert child.end() == -signal.SIGKILL
    assert time.monotonic() - start < 1.0


def test_a_stage_whose_parent_has_closed_its_pipe_leaves(line):
    line.ready()
    child = line.children["code2wav"]
    child.close_inbox()
    assert child.end() == 0


def test_a_stage_that_fails_to_load_says_why():
    line = Line(options=SyntheticOptions(fail=Fail(stage="thinker", at=-1)))
    try:
        message = line.children["thinker"].receive()
        assert isinstance(message, ProcessFailed)
        assert (message.process, message.error.kind) == ("thinker.0", "RuntimeError")
        assert "while it loads" in message.error.message
        assert line.children["thinker"].end() == 1
    finally:
        line.close()


def test_exit_and_hang_are_what_they_say():
    line = Line(options=SyntheticOptions(fail=Fail(stage="thinker", at=1, kind="exit")))
    try:
        line.ready()
        line.submit(1, "one two", seed=0)
        assert line.children["thinker"].end() == 3
    finally:
        line.close()


def test_sigterm_ends_a_stage_that_hangs_and_sigint_does_nothing():
    line = Line(options=SyntheticOptions(fail=Fail(stage="thinker", at=2, kind="hang")))
    try:
        line.ready()
        line.submit(1, "one two three", seed=0)
        child = line.children["thinker"]
        while not any(isinstance(event, StepDone) and event.index == 1 for event in child.receive().events):
            pass
        os.kill(child.process.pid, signal.SIGINT)
        os.kill(child.process.pid, signal.SIGTERM)
        assert child.end() == -signal.SIGTERM
    finally:
        line.close()


def test_a_stage_imports_nothing_heavy():
    line = Line()
    try:
        children = {name: Child(line.spec(name, None), target=run_and_list_modules) for name in STAGES}
        for name, child in children.items():
            child.receive()
            child.send(Stop())
            (report,) = child.receive().events
            modules = {module.partition(".")[0] for module in dict(report.facts)["modules"].split()}
            assert "stages" in modules
            assert not modules & HEAVY, name
            assert child.end() == 0
    finally:
        line.close()


def test_the_process_has_its_name(line):
    line.ready()
    for name, child in line.children.items():
        comm = Path(f"/proc/{child.process.pid}/comm").read_text().strip()
        assert comm == f"omni:{name}.0"[:15]
