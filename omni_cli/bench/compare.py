"""`omni bench compare`: the same requests of the same weights through transformers' own `generate` and through omni.

Both are greedy and go to their limits. They run one after the other, each alone on its devices, since both together may
not fit: first the omni deployment, at one request at once and then at more; then one process with the whole model,
request by request, as shipped and held to `grouped_mm` experts. On a CPU in float32 every edge is `inline`, so that the
token ids and codes that cross it can be seen here; they have to be those of `generate`.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from omni_cli.bench.alone import receive
from omni_cli.bench.answers import Answers
from omni_cli.bench.deployment import started
from omni_cli.bench.level import Level, Load
from omni_cli.bench.prepared import Prepared
from omni_cli.bench.served import Piece, Served
from omni_cli.bench.serving import Serving
from omni_cli.bench.sized import SizedRequests
from omni_cli.bench.steps import StepLog
from omni_cli.errors import ConfigError
from omni_cli.launch.process import StageProcess
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.spec import stage_spec
from omni_cli.runtime.events import Listener
from omni_cli.trace.summary import duration_s
from stages.events import OutputProduced, StageFailed, StageFinished
from stages.messages import StageRequest, Submit, Turn
from stages.models.registry import ReferenceOptions, run_reference

SHIPPED, FORCED = "transformers, as shipped", "transformers, grouped_mm"
_EXPERTS = {SHIPPED: "", FORCED: "grouped_mm"}

Say = Callable[[str], None]


def comparable(words: Sequence[str]) -> Prepared:
    """The plan of `words`, greedy; where answers can be compared, with every edge inline. Raises OmniError."""
    prepared = Prepared.of(words)
    family, plan = prepared.loaded.family, prepared.plan
    if not family.has_reference:
        raise ConfigError(f"family `{family.name}` has no `generate` to be compared with")
    greedy = [f"request.sampling.{name}.temperature=0" for name, stage in family.stages.items() if stage.sampled]
    edges = [
        f"deploy.stages.{stage.name}.inputs.{edge.producer}.connector=inline"
        for stage in plan.stages
        for edge in stage.inputs
        if edge.producer in family.stages and _exact(prepared)
    ]
    return replace(Prepared.of((*words, *greedy, *edges)), words=tuple(words))


def _exact(prepared: Prepared) -> bool:
    on_cpu = not any(replica.devices for stage in prepared.plan.stages for replica in stage.replicas)
    return on_cpu and prepared.plan.model.dtype == "float32"


@dataclass(slots=True, kw_only=True)
class Comparison:
    """What is to be compared, and what came of it: a level by name, the slowest side last. `agreed` of `compared`
    answers of omni had the ids and codes of the reference."""

    prepared: Prepared
    requests: SizedRequests
    count: int
    concurrency: tuple[int, ...]
    levels: dict[str, Level] = field(default_factory=dict)
    agreed: int = 0
    compared: int = 0

    def measure(self, interrupts: Interrupts, say: Say) -> None:
        loads = tuple(Load(callers=callers, requests=max(self.count, callers)) for callers in self.concurrency)
        serving = Serving(plan=self.prepared.plan, requests=self.requests, loads=loads)
        answers = Answers(f"{self.requests.seed}-")
        serving.measure(interrupts, None, say, answers)
        self.levels |= {f"omni, {level.load}": level for level in serving.levels}
        expected = Answers("")
        spec = stage_spec(self.prepared.plan, self.prepared.plan.entries[0].name, 0, secrets.token_hex(4))
        log = StepLog(self.prepared.plan)
        lonely = replace(spec, inputs=(), consumers=())
        say("transformers: loading")
        with started(self.prepared.plan, [lonely], interrupts, listener=log, run_stage=run_reference) as running:
            for name, experts in _EXPERTS.items():
                self._one(running.replicas[0], self.requests.warm, 0, experts, [])
                log.clear()
                heard: list[Listener] = [log, expected] if name == SHIPPED else [log]
                start_ns = time.monotonic_ns()
                served = []
                for number in range(self.count):
                    say(f"{name}: request {number + 1} of {self.count}")
                    served.append(self._one(running.replicas[0], self.requests, number, experts, heard))
                wall_s = (time.monotonic_ns() - start_ns) / 1e9
                self.levels[name] = Level(
                    load=Load(callers=1, requests=self.count),
                    wall_s=wall_s,
                    served=tuple(served),
                    warm_up_failed=0,
                    prompt_tokens=tuple(log.prompt_tokens),
                    stages=log.loads(wall_s),
                )
        if self.exact:
            self.agreed, self.compared = answers.agreement(expected)

    @property
    def exact(self) -> bool:
        """Whether answers have to be equal."""
        return _exact(self.prepared)

    def _one(
        self,
        process: StageProcess,
        requests: SizedRequests,
        number: int,
        experts: str,
        listeners: Sequence[Listener],
    ) -> Served:
        request = requests.make(number, str(number))
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
                elif isinstance(event, StageFailed):
                    one.error, one.end_ns = f"{event.error.kind}: {event.error.message}", event.t_ns
                elif isinstance(event, StageFinished):
                    one.end_ns = event.t_ns
        return one
