"""`omni bench stage`: the steps of one stage, alone on its device, per batch size, against what they have to read.

The floor of a step is the bytes that it must read (the family contract's `step_bytes`) by the bandwidth of the device's
memory, as a copy within it measures it, or as it is given. No kernel can be faster; a long chunk of code2wav is bound
by arithmetic instead.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from omni_cli.bench.alone import LonelyStage, lonely_spec
from omni_cli.bench.deployment import deployed
from omni_cli.bench.figure import Figure, by_key, number, spread
from omni_cli.bench.prepared import Prepared
from omni_cli.bench.report import Report
from omni_cli.bench.sized import SizedRequests
from omni_cli.bench.steps import StageLoad, StepLog, stage_load
from omni_cli.errors import ConfigError
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import StagePlan
from omni_cli.streams import say
from stages.events import StepDone
from stages.messages import REQUEST
from stages.models.registry import Feed, RequestSize
from stages.runners.copy_rate import FACT, tell_copy_rate

_TEXT_TOKENS = 64  # of the text that a talker speaks
_WARM_STEPS = 8

_HEADER = ("batch", "steps", "step ms", "between ms", "floor ms", "step / floor", "prefill ms", "counters")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSteps:
    """The full steps of one batch size; `prefill_ms` is the time of all steps before them. `floor_ms`: None if the
    family has no formula."""

    batch: int
    load: StageLoad
    prefill_ms: float
    floor_ms: float | None

    def figures(self) -> dict[str, Figure]:
        samples: dict[str, tuple[str, Iterable[float]]] = {
            "step_ms": ("a step", self.load.step_ms),
            "prefill_ms": ("prefill", [self.prefill_ms]),
            "gap_ms": ("between two steps", self.load.gap_ms),
            "floor_ms": ("byte floor", [self.floor_ms] if self.floor_ms else []),
        }
        return by_key((key, f"batch {self.batch}, {title}", "ms", found) for key, (title, found) in samples.items())

    def row(self) -> tuple[str, ...]:
        found = self.figures()
        return (
            str(self.batch),
            str(self.load.steps),
            *(spread(found.get(key)) for key in ("step_ms", "gap_ms")),
            number(self.floor_ms) if self.floor_ms else "-",
            number(found["step_ms"].median / self.floor_ms) if self.floor_ms else "-",
            number(self.prefill_ms),
            self.load.path,
        )


@dataclass(slots=True, kw_only=True)
class StageBench:
    """What is to be measured, and what was. `context` is the sequence before the first measured step, in tokens;
    `bandwidth` in bytes a second, 0 until it is known."""

    prepared: Prepared
    name: str
    batches: tuple[int, ...]
    context: int
    steps: int
    seed: int
    bandwidth: float
    stage: StagePlan = field(init=False)
    found: list[BatchSteps] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan, most = self.prepared.plan, max(self.batches)
        if self.name not in (names := [stage.name for stage in plan.stages]):
            raise ConfigError(f"--stage {self.name or 'is missing'}: the plan has {', '.join(names)}")
        self.stage = plan.stage(self.name)
        if most > self.stage.max_batch:
            raise ConfigError(
                f"a batch of {most}: {self.name} takes {self.stage.max_batch} at most; raise "
                f"deploy.stages.{self.name}.max_batch, or measure less (--batch)"
            )
        if self._fed and self.prepared.loaded.family.feed is None:
            raise ConfigError(
                f"family `{plan.family}` cannot feed `{self.name}` alone (contract `feed`): measure a first stage"
            )

    def measure(self, interrupts: Interrupts) -> Report:
        """Starts the stage once for all batch sizes; before it, a process that measures the bandwidth if need be."""
        plan = self.prepared.plan
        spec = lonely_spec(plan, self.name, secrets.token_hex(4))
        if self.prepared.loaded.family.step_bytes is not None and not self.bandwidth:
            say("memory bandwidth")
            log = StepLog(plan)
            with deployed(plan, interrupts, log, specs=[spec], run_stage=tell_copy_rate):
                self.bandwidth = float(log.facts[spec.process][FACT])
        with deployed(plan, interrupts, specs=[spec]) as deployment:
            lonely = LonelyStage(deployment.running.replicas[0])
            for batch in self.batches:
                say(f"{self.name}, batch {batch}")
                self._carry(lonely, batch, _WARM_STEPS)
                self.found.append(self._judged(batch, self._carry(lonely, batch, self.steps)))
        figures = {
            f"batch_{found.batch}_{key}": figure.document()
            for found in self.found
            for key, figure in found.figures().items()
        }
        table = _HEADER, [found.row() for found in self.found]
        memory = (("bandwidth", f"{self.bandwidth / 1e9:.0f} GB/s"),) if self.bandwidth else ()
        return self.prepared.report(("stage", self.name), [table], {"figures": figures}, machine=memory)

    @property
    def _fed(self) -> bool:
        return any(edge.producer != REQUEST for edge in self.stage.inputs)

    def _carry(self, lonely: LonelyStage, batch: int, steps: int) -> list[StepDone]:
        first, then = self.stage.tuning.first_chunk_frames or 1, self.stage.tuning.chunk_frames or 1
        autoregressive = self.stage.execution_type == "llm_ar"
        frames = steps if autoregressive else first + steps * then
        text = _TEXT_TOKENS if self._fed else steps + 1
        size = RequestSize(prompt_tokens=self.context, text_tokens=text, frames=frames)
        requests = SizedRequests.of(self.prepared.loaded, self.prepared.plan, size, self.seed)
        orders = [(requests.make(number), self._feed(size, requests.draw(number))) for number in range(batch)]
        return lonely.carry(orders, (1,) if autoregressive else (first, *[then] * steps))

    def _feed(self, size: RequestSize, draw: Random) -> Feed:
        feed = self.prepared.loaded.family.feed
        return feed(self.prepared.plan.model.path, self.name, size, draw) if feed is not None and self._fed else ()

    def _judged(self, batch: int, steps: Sequence[StepDone]) -> BatchSteps:
        usual = self.stage.tuning.chunk_frames or 1

        def full(step: StepDone) -> bool:
            return len(step.rows) == batch and all(
                row.phase == "decode" or (row.phase == "forward" and row.units == usual) for row in step.rows
            )

        measured = [step for step in steps if full(step)]
        if not measured:
            raise ConfigError(
                f"no step of {self.name} had all {batch} requests in it: lower --context, or raise "
                f"deploy.stages.{self.name}.kv_blocks or memory_fraction"
            )
        floor, model = self.prepared.loaded.family.step_bytes, self.prepared.plan.model
        floor_ms = None
        if floor is not None and self.bandwidth:
            behind = self.context + len(measured) // 2
            floor_ms = 1e3 * floor(model.path, self.name, model.dtype, batch, behind) / self.bandwidth
        return BatchSteps(
            batch=batch,
            load=stage_load(self.name, "unit", [measured], 1.0, ()),
            prefill_ms=sum((step.end_ns - step.t_ns) / 1e6 for step in steps if step.index < measured[0].index),
            floor_ms=floor_ms,
        )
