"""All stages of a synthetic family in one thread: real workers, schedulers and runners, and the simplest of routers."""

import itertools
from array import array
from collections import defaultdict

from stages.config import EdgeSpec, ModelSpec, StageSpec
from stages.connectors.gather import gather
from stages.connectors.inline import InlineReader
from stages.events import MessagePut, OutputProduced, StageFailed, StageFinished
from stages.messages import (
    REQUEST,
    Cancel,
    ChatMessage,
    Deliver,
    Part,
    Sampling,
    StageRequest,
    StreamMessage,
    Submit,
    Turn,
)
from stages.models.registry import build_runner, contract
from stages.payload import Payload, PayloadRef
from stages.schedulers.registry import create_scheduler
from stages.worker.loop import StageWorker

OUTPUTS = {
    "synthetic": {"text": "thinker", "audio": "code2wav"},
    "synthetic_dag": {"text": "thinker", "audio": "code2wav", "audio_mix": "mixer"},
}


class Unbounded:
    """A connector without limits; counts its messages and their bytes."""

    def __init__(self):
        self.sizes = []

    def free_slots(self):
        return 1 << 20

    def put(self, pieces):
        gathered = gather(pieces)
        data = bytearray(gathered.nbytes)
        gathered.fill(memoryview(data))
        self.sizes.append(len(data))
        ref = PayloadRef(tensors=gathered.tensors, meta=gathered.meta, nbytes=gathered.nbytes, inline=bytes(data))
        return ref, None

    def reclaim(self, lease):
        raise AssertionError

    def close(self):
        pass


class Pipeline:
    """`mode` is that of every edge, or a function of (producer, consumer)."""

    def __init__(self, family, mode="complete", options=None, max_batch=4):
        self.contract = contract(family)
        self.outputs = OUTPUTS[family]
        mode_of = mode if callable(mode) else lambda producer, consumer: mode
        self.consumers = defaultdict(list)
        for name, stage in self.contract.stages.items():
            for producer in stage.inputs:
                self.consumers[producer].append(name)
        self.runners, self.workers, self.writers = {}, {}, {}
        ticks = itertools.count()
        for name, stage in self.contract.stages.items():
            inputs = [_edge(p, name, mode_of(p, name)) for p in stage.inputs]
            if not inputs:
                inputs = [_edge(REQUEST, name, "complete")]
            edges = [_edge(name, c, mode_of(name, c)) for c in self.consumers[name]]
            if stage.outputs and stage.outputs != ("text",):
                edges.append(_edge(name, REQUEST, "complete"))
            spec = _spec(family, name, stage.execution_type, tuple(inputs), tuple(edges), stage.outputs, options)
            self.writers[name] = {edge.consumer: Unbounded() for edge in edges}
            self.slept = []
            self.runners[name] = runner = build_runner(spec)
            runner._sleep = runner._faults._sleep = self.slept.append
            runner.load()
            runner.warm_up()
            scheduler = create_scheduler(stage.execution_type, max_batch, stage.max_units_a_row)
            readers = {edge.producer: InlineReader() for edge in inputs}
            self.workers[name] = StageWorker(spec, runner, scheduler, readers, self.writers[name], lambda: next(ticks))
        self.texts = defaultdict(str)
        self.sounds = defaultdict(list)
        self.reasons = {}
        self.chunks = defaultdict(int)
        self.failed, self.finished, self.steps = {}, defaultdict(dict), defaultdict(int)

    def submit(self, uid, text="hello there", *, seed=0, media=None, options=None, sampling=None, choice=0, want=None):
        want = tuple(self.outputs) if want is None else want
        parts = [Part(kind="text", text=text)] if text else []
        for name, (kind, _) in (media or {}).items():
            parts.append(Part(kind=kind, media=name))
        needed = self._needed(want)
        for name in needed:
            producers = tuple(p for p in self.contract.stages[name].inputs if p in needed)
            request = StageRequest(
                uid=uid,
                seed=seed,
                inputs=producers or ((REQUEST,) if media else ()),
                consumers=tuple(c for c in self.consumers[name] if c in needed),
                outputs=tuple(m for m in want if self.outputs[m] == name),
                sampling=(sampling or {}).get(name, Sampling()),
                conversation=(ChatMessage(role="user", parts=tuple(parts)),) if not producers else (),
                choice=choice,
                options=options,
            )
            self.tell(name, Submit(request=request))
        if media:
            payload = Payload(tensors=tuple(tensor for _, tensor in media.values()))
            ref, _ = Unbounded().put([payload])
            message = StreamMessage(uid=uid, producer=REQUEST, consumer="thinker", seq=0, units=0, eos=True, ref=ref)
            self.tell("thinker", Deliver(message=message))

    def cancel(self, uid):
        for name in self.workers:
            self.tell(name, Cancel(uid=uid))

    def _needed(self, want):
        needed = {self.outputs[m] for m in want}
        for name in reversed(self.contract.stages):
            if name in needed:
                needed.update(self.contract.stages[name].inputs)
        return [name for name in self.contract.stages if name in needed]

    def tell(self, name, command):
        self.workers[name].apply(Turn(commands=(command,), sent_ns=0))
        self._collect(name)

    def run(self, steps=None):
        """One step of each stage in turn until none can run, or `steps` rounds."""
        for _ in range(steps) if steps else itertools.count():
            busy = [name for name, worker in self.workers.items() if worker.step()]
            for name in busy:
                self.steps[name] += 1
                self._collect(name)
            if not busy:
                return

    def _collect(self, name):
        report = self.workers[name].take_report()
        for event in report.events if report else ():
            if isinstance(event, MessagePut):
                self.tell(event.message.consumer, Deliver(message=event.message))
            elif isinstance(event, OutputProduced):
                self._output(event)
            elif isinstance(event, StageFailed):
                self.failed[event.uid, name] = event.error
            elif isinstance(event, StageFinished):
                self.finished[event.uid][name] = event.reason

    def _output(self, event):
        key = (event.uid, event.modality)
        self.chunks[key] += 1
        self.texts[key] += event.text
        if event.ref is not None:
            self.sounds[key].append(InlineReader().get(event.ref))
        if event.eos:
            self.reasons[key] = event.reason

    def sound(self, uid, modality="audio"):
        whole = array("f")
        for payload in self.sounds[uid, modality]:
            whole.frombytes(payload.tensor("audio").data)
        return whole

    def is_empty(self):
        """Nothing is left of any request in any stage."""
        return not any(runner._states for runner in self.runners.values()) and not any(
            worker._requests or len(worker._scheduler) for worker in self.workers.values()
        )


def _edge(producer, consumer, mode):
    return EdgeSpec(producer=producer, consumer=consumer, mode=mode, connector="shm", rings=())


def _spec(family, stage, execution_type, inputs, consumers, outputs, options):
    return StageSpec(
        run_id="r",
        family=family,
        stage=stage,
        replica=0,
        generation=0,
        execution_type=execution_type,
        model=ModelSpec(path="", load_format="dummy", dtype="float32"),
        devices=(),
        max_batch=4,
        memory_fraction=0.0,
        threads=1,
        inputs=inputs,
        consumers=consumers,
        outputs=outputs,
        options=options,
    )
