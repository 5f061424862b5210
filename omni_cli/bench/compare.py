"""`omni bench compare`: the same requests of the same weights through the model's own library and through omni.

The library is transformers' `generate`, or for pictures diffusers' pipeline. Answers are greedy and go to their limits.
The sides run one after the other, each alone on its devices, since both together may not fit: first the omni
deployment, at one request at once and then at more; then one process with the whole model, request by request, in each
way that the family names (`references`). On a CPU in float32 every edge is `inline`, so that the token ids and codes
that cross it can be seen here; they have to be those of `generate`. Pictures are held against diffusers' own; there
they may differ in their last bit.
"""

import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from omni_cli.bench.alone import receive
from omni_cli.bench.figure import number
from omni_cli.bench.level import Drawing, Level
from omni_cli.bench.load import Load
from omni_cli.bench.prepared import Prepared
from omni_cli.bench.report import Report, Table
from omni_cli.bench.served import Piece, Served
from omni_cli.bench.serving import Serving
from omni_cli.bench.sized import SizedRequests
from omni_cli.bench.steps import StepLog
from omni_cli.deployment import deployed
from omni_cli.errors import ConfigError
from omni_cli.launch.process import StageProcess
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.spec import stage_spec
from omni_cli.runtime.events import Event, Listener, RequestAdmitted
from omni_cli.runtime.request import OmniRequest
from omni_cli.streams import say
from omni_cli.trace.summary import duration_s, type_of
from stages.events import MessagePut, OutputProduced, StageFailed, StageFinished
from stages.messages import StageRequest, Submit, Turn
from stages.models.registry import ReferenceOptions, run_reference
from stages.payload import view

_SEEN = ("generated_ids", "codes")
_RATES = ("requests_per_s", "steps_per_s")  # more is better; of everything else, less
_LAST_BIT = 1  # by how much pictures may differ, of 255


def comparable(words: Sequence[str], command: str) -> Prepared:
    """The plan of `words`, greedy; where answers can be compared, with every edge inline. Raises OmniError."""
    prepared = Prepared.of(words, command)
    family, plan = prepared.loaded.family, prepared.plan
    if not family.references:
        raise ConfigError(f"family `{family.name}` has no `generate` to be compared with")
    if plan.image is not None:
        return prepared
    greedy = [f"request.sampling.{name}.temperature=0" for name, stage in family.stages.items() if stage.sampled]
    edges = [
        f"deploy.stages.{stage.name}.inputs.{edge.producer}.connector=inline"
        for stage in plan.stages
        for edge in stage.inputs
        if edge.producer in family.stages and _exact(prepared)
    ]
    return Prepared.of((*words, *greedy, *edges), command)


def _exact(prepared: Prepared) -> bool:
    """Whether answers have to be equal."""
    on_cpu = not any(replica.devices for stage in prepared.plan.stages for replica in stage.replicas)
    return on_cpu and prepared.plan.model.dtype == "float32"


class Answers:
    """A listener: ids and codes of answers, from what crosses inline edges, by the request's id without `prefix`; a
    request that nobody has admitted goes by its uid. One id may have several answers."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._names: dict[int, str] = {}
        self._found: dict[int, dict[str, bytes]] = defaultdict(lambda: defaultdict(bytes))

    def __call__(self, source: str, event: Event) -> None:
        if isinstance(event, RequestAdmitted):
            self._names[event.uid] = event.request_id.removeprefix(self._prefix)
        elif isinstance(event, MessagePut) and (ref := event.message.ref) is not None and ref.inline is not None:
            for tensor in view(ref.tensors, ref.meta, memoryview(ref.inline)).tensors:
                if tensor.name in _SEEN:
                    self._found[event.uid][tensor.name] += bytes(tensor.data)

    def agreement(self, expected: "Answers") -> tuple[int, int]:
        """How many answers are those that `expected` has for their id, and how many have one there."""
        known = dict(expected._answers())
        pairs = [(own, known[name]) for name, own in self._answers() if name in known]
        return sum(own == theirs for own, theirs in pairs), len(pairs)

    def _answers(self) -> Iterator[tuple[str, dict[str, bytes]]]:
        return ((self._names.get(uid, str(uid)), tensors) for uid, tensors in self._found.items())


@dataclass(slots=True, kw_only=True)
class Comparison:
    """What is to be compared, and what came of it: a level by name, the reference's last. `agreed` of `compared`
    answers of omni had the ids and codes of the reference; or were its pictures, of which the channel that differs most
    is `apart`, of 255. None where there are no pictures."""

    prepared: Prepared
    requests: SizedRequests
    count: int
    concurrency: Sequence[int]
    levels: dict[str, Level] = field(default_factory=dict)
    agreed: int = 0
    compared: int = 0
    apart: int | None = None

    def measure(self, interrupts: Interrupts) -> Report:
        callers = dict.fromkeys((1, *self.concurrency))
        loads = tuple(Load(callers=n, requests=max(self.count, n)) for n in callers)
        serving = Serving(plan=self.prepared.plan, requests=self.requests, loads=loads)
        answers, expected = Answers(self.requests.prefix), Answers()
        serving.keep = self._pictures
        serving.measure(interrupts, answers)
        self.levels |= {f"omni, {level.load}": level for level in serving.levels}
        self._reference(interrupts, expected)
        if self._pictures:
            self._look()
        elif _exact(self.prepared):
            self.agreed, self.compared = answers.agreement(expected)
        return self._report()

    @property
    def _pictures(self) -> bool:
        return self.requests.image is not None

    @property
    def _references(self) -> Mapping[str, str]:
        return self.prepared.loaded.family.references

    def _look(self) -> None:
        """At each picture of omni and at that of the reference for the same request."""
        shipped = next(iter(self._references))
        known = {one.number: one.picture for one in self.levels[shipped].done}
        for name, level in self.levels.items():
            for one in level.done if name not in self._references else ():
                if one.number in known:
                    apart = _apart(one.picture, known[one.number])
                    self.apart = max(self.apart or 0, apart)
                    self.compared += 1
                    self.agreed += apart <= _LAST_BIT or not _exact(self.prepared)

    @property
    def failed(self) -> bool:
        return self.agreed != self.compared or any(level.failed for level in self.levels.values())

    def _reference(self, interrupts: Interrupts, expected: Answers) -> None:
        plan, drawing = self.prepared.plan, Drawing(step_flop=self.requests.step_flop)
        spec = stage_spec(plan, plan.entries[0].name, 0, secrets.token_hex(4))
        lonely, log = replace(spec, inputs=(), consumers=()), StepLog(plan)
        warm_up, made = self.requests.warm.make(0), [self.requests.make(number) for number in range(self.count)]
        say("the model's own library: loading")
        with deployed(plan, interrupts, specs=[lonely], run_stage=run_reference) as deployment:
            process = deployment.running.replicas[0]
            for name, experts in self._references.items():
                warm = [_generated(process, 0, warm_up, experts, [])]
                log.clear()
                heard: list[Listener] = [log] if experts else [log, expected]
                served = []
                for number, request in enumerate(made):
                    say(f"{name}: request {number + 1} of {self.count}")
                    served.append(_generated(process, number, request, experts, heard))
                    served[-1].check(self.requests.asked)
                self.levels[name] = Level.of(
                    Load(callers=1, requests=self.count), served, warm, log, prefix="", drawing=drawing
                )

    def _report(self) -> Report:
        columns = _columns(self.levels, self._references)
        times = _ratios(self.levels, columns, self._references)
        header, rows = times
        details = {
            "levels": {name: level.document() for name, level in self.levels.items()},
            "times_better": {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows},
            "agreed": self.agreed,
            "compared": self.compared,
            "apart": self.apart,
        }
        notes = [*([str(self.requests)] if self._pictures else []), *self.requests.notes, self._verdict()]
        return self.prepared.report(("compare",), [_medians(self.levels, columns), times], details, notes)

    def _verdict(self) -> str:
        if self._pictures:
            shipped = next(iter(self._references))
            most = f"The largest difference of a channel between omni and {shipped} is {self.apart} of 255"
            return f"{most}, in {self.compared} pictures."
        if not _exact(self.prepared):
            return "Answers are not compared: but for float32 on a CPU, near ties may fall either way."
        if not self.compared:
            return "Answers are not compared: text alone crosses no edge on which its ids could be seen."
        return f"Ids and codes of {self.agreed} of {self.compared} answers are those of `generate`."


def _generated(
    process: StageProcess, number: int, request: OmniRequest, experts: str, listeners: Sequence[Listener]
) -> Served:
    """One request through `generate`, from its sending to its end."""
    limits = {stage: sampling.max_tokens or 0 for stage, sampling in request.sampling.items()}
    submit = Submit(
        request=StageRequest(
            uid=number,
            seed=request.seed,
            inputs=(),
            consumers=(),
            outputs=request.outputs,
            conversation=request.conversation,
            voice=request.voice,
            image=request.image,
            options=ReferenceOptions(limits=limits, experts=experts),
        )
    )
    one = Served(number=number, start_ns=time.monotonic_ns())
    process.send(Turn(commands=(submit,), sent_ns=one.start_ns))
    while not one.end_ns:
        report = receive(process)
        for event in report.events:
            for listener in listeners:
                listener(report.process, event)
            if isinstance(event, OutputProduced):
                plays_s = duration_s(event.ref) if event.ref is not None else 0.0
                piece = Piece(t_ns=event.t_ns, modality=event.modality, units=event.units, plays_s=plays_s)
                one.pieces.append(piece)
                if type_of(event.modality) == "image" and event.ref is not None:
                    one.picture = event.ref.inline or b""
            elif isinstance(event, StageFailed):
                one.error, one.end_ns = f"{event.error.kind}: {event.error.message}", event.t_ns
            elif isinstance(event, StageFinished):
                one.end_ns = event.t_ns
    return one


def _apart(picture: bytes, other: bytes) -> int:
    """The largest difference of two pictures' bytes; 255 where they have not as many."""
    if len(picture) != len(other):
        return 255
    pixels, others = (np.frombuffer(data, np.uint8).astype(np.int16) for data in (picture, other))
    return int(np.abs(pixels - others).max(initial=0))


def _columns(levels: Mapping[str, Level], references: Mapping[str, str]) -> dict[str, str]:
    """Keys and titles of the figures that the reference has, whatever its stages are called."""
    units = {
        f"{load.stage}_{load.unit}_ms": f"ms a {load.unit.rpartition('_')[-1]}"
        for name in references
        for load in levels[name].stages
        if load.unit_ms
    }
    if any(level.denoising for level in levels.values()):
        return {"image_s": "s an image", **units, "steps_per_s": "steps/s", "requests_per_s": "images/s"}
    return {"ttft_ms": "TTFT ms", "ttfa_ms": "TTFA ms", **units, "rtf": "RTF", "requests_per_s": "requests/s"}


def _medians(levels: Mapping[str, Level], columns: Mapping[str, str]) -> Table:
    """A row for each side and load."""
    rows = []
    for name, level in levels.items():
        found = level.figures()
        cells = (number(found[key].median) if key in found else "-" for key in columns)
        rows.append((name, str(len(level.done)), str(len(level.failed)), *cells))
    return ("side", "done", "failed", *columns.values()), rows


def _ratios(levels: Mapping[str, Level], columns: Mapping[str, str], references: Mapping[str, str]) -> Table:
    """How many times better omni is; a row for each load of omni and each side that it is held against."""
    medians = {name: {k: f.median for k, f in level.figures().items()} for name, level in levels.items()}

    def cells(own: Mapping[str, float], theirs: Mapping[str, float]) -> Iterator[str]:
        for key in columns:
            ours, base = own.get(key), theirs.get(key)
            yield f"{number(ours / base if key in _RATES else base / ours)} x" if ours and base else "-"

    rows = [
        (f"{name} / {base}", *cells(own, medians[base]))
        for base in references
        for name, own in medians.items()
        if name not in references
    ]
    return ("times better", *columns.values()), rows
