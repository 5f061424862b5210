"""`omni bench stage`: the steps of one stage, alone on its device, per batch size, against what they have to read.

The floor of a step is the bytes that it must read (the family contract's `step_bytes`) by the bandwidth of the device's
memory, as a copy within it measures it, or as it is given. No kernel can be faster; a long chunk of code2wav is bound
by arithmetic instead.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from omni_cli.bench.alone import LonelyStage, Order, lonely_spec
from omni_cli.bench.deployment import started
from omni_cli.bench.figure import Figure
from omni_cli.bench.report import Table, number
from omni_cli.bench.sized import SizedRequests
from omni_cli.bench.steps import StageLoad, stage_load
from omni_cli.config.load import LoadedConfig
from omni_cli.errors import ConfigError
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import ExecutionPlan, StagePlan
from omni_cli.runtime.events import Event
from stages.config import StageSpec
from stages.events import ProcessReady, StepDone
from stages.messages import REQUEST
from stages.models.registry import RequestSize
from stages.runners.copy_rate import FACT, tell_copy_rate

_TEXT_TOKENS = 64  # of the text that a talker speaks
_WARM_STEPS = 8

HEADER = ("batch", "steps", "step ms", "between ms", "floor ms", "step / floor", "prefill ms", "counters")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSteps:
    """The full steps of one batch size; `prefill_ms` is the time of all steps before them. `floor_ms`: None if the
    family has no formula."""

    batch: int
    load: StageLoad
    prefill_ms: float
    floor_ms: float | None

    def figures(self) -> tuple[Figure, ...]:
        def figure(key: str, title: str, samples: Sequence[float]) -> Figure:
            return Figure(
                key=f"batch_{self.batch}_{key}", title=f"batch {self.batch}, {title}", unit="ms", samples=tuple(samples)
            )

        found = [figure("step_ms", "a step", self.load.step_ms), figure("prefill_ms", "prefill", [self.prefill_ms])]
        found += [figure("gap_ms", "between two steps", self.load.gap_ms)] if self.load.gap_ms else []
        found += [figure("floor_ms", "byte floor", [self.floor_ms])] if self.floor_ms else []
        return tuple(found)


@dataclass(slots=True, kw_only=True)
class StageBench:
    """What is to be measured, and what was. `context` is the sequence before the first measured step, in tokens;
    `bandwidth` in bytes a second, 0 until it is known."""

    loaded: LoadedConfig
    plan: ExecutionPlan
    stage: StagePlan
    batches: tuple[int, ...]
    context: int
    steps: int
    seed: int
    bandwidth: float = 0.0
    found: list[BatchSteps] = field(default_factory=list)

    def __post_init__(self) -> None:
        most = max(self.batches)
        if most > self.stage.max_batch:
            raise ConfigError(
                f"a batch of {most}: {self.stage.name} takes {self.stage.max_batch} at most; raise "
                f"deploy.stages.{self.stage.name}.max_batch, or measure less (--batch)"
            )
        if self._fed and self.loaded.family.feed is None:
            raise ConfigError(
                f"family `{self.plan.family}` cannot feed `{self.stage.name}` alone (contract `feed`): "
                "measure a first stage"
            )

    def measure(self, interrupts: Interrupts, say: Callable[[str], None]) -> None:
        """Starts the stage once for all batch sizes; before it, a process that measures the bandwidth if need be."""
        spec = lonely_spec(self.plan, self.stage.name, secrets.token_hex(4))
        if self.loaded.family.step_bytes is not None and not self.bandwidth:
            say("memory bandwidth")
            self.bandwidth = _copy_rate(self.plan, spec, interrupts)
        with started(self.plan, [spec], interrupts, listener=lambda source, event: None) as running:
            lonely = LonelyStage(running.replicas[0])
            for batch in self.batches:
                say(f"{self.stage.name}, batch {batch}")
                self._carry(lonely, batch, _WARM_STEPS)
                self.found.append(self._judged(batch, self._carry(lonely, batch, self.steps)))

    @property
    def _fed(self) -> bool:
        return any(edge.producer != REQUEST for edge in self.stage.inputs)

    def _carry(self, lonely: LonelyStage, batch: int, steps: int) -> list[StepDone]:
        first, then = self.stage.tuning.first_chunk_frames or 1, self.stage.tuning.chunk_frames or 1
        autoregressive = self.stage.execution_type == "llm_ar"
        frames = steps if autoregressive else first + steps * then
        text = _TEXT_TOKENS if self._fed else steps + 1
        size = RequestSize(prompt_tokens=self.context, text_tokens=text, frames=frames)
        requests = SizedRequests(loaded=self.loaded, size=size, outputs=tuple(self.plan.outputs), seed=self.seed)
        orders = [self._order(requests, number) for number in range(batch)]
        return lonely.carry(orders, (1,) if autoregressive else (first, *[then] * steps))

    def _order(self, requests: SizedRequests, number: int) -> Order:
        order = Order(request=requests.make(number, str(number)))
        feed = self.loaded.family.feed
        if not self._fed or feed is None:
            return order
        return replace(order, feed=feed(self.plan.model.path, self.stage.name, requests.size, requests.draw(number)))

    def _judged(self, batch: int, steps: Sequence[StepDone]) -> BatchSteps:
        usual = self.stage.tuning.chunk_frames or 1

        def full(step: StepDone) -> bool:
            return len(step.rows) == batch and all(
                row.phase == "decode" or (row.phase == "forward" and row.units == usual) for row in step.rows
            )

        measured = [step for step in steps if full(step)]
        if not measured:
            raise ConfigError(
                f"no step of {self.stage.name} had all {batch} requests in it: lower --context, or raise "
                f"deploy.stages.{self.stage.name}.kv_blocks or memory_fraction"
            )
        before = [step for step in steps if step.index < measured[0].index]
        floor = self.loaded.family.step_bytes
        floor_ms = None
        if floor is not None and self.bandwidth:
            behind = self.context + len(measured) // 2
            nbytes = floor(self.plan.model.path, self.stage.name, self.plan.model.dtype, batch, behind)
            floor_ms = 1e3 * nbytes / self.bandwidth
        return BatchSteps(
            batch=batch,
            load=stage_load(self.stage.name, "unit", [measured], 1.0),
            prefill_ms=sum((step.end_ns - step.t_ns) / 1e6 for step in before),
            floor_ms=floor_ms,
        )

    def table(self) -> Table:
        return HEADER, [_row(batch) for batch in self.found]


def _row(found: BatchSteps) -> tuple[str, ...]:
    step, *others = found.figures()
    gap = next((figure for figure in others if figure.key.endswith("gap_ms")), None)
    return (
        str(found.batch),
        str(found.load.steps),
        *(f"{number(f.median)} {number(f.quantile(0.99))}" if f else "-" for f in (step, gap)),
        number(found.floor_ms) if found.floor_ms else "-",
        number(step.median / found.floor_ms) if found.floor_ms else "-",
        number(found.prefill_ms),
        ", ".join(f"{name} {count}" for name, count in found.load.counters.items()) or "-",
    )


def _copy_rate(plan: ExecutionPlan, spec: StageSpec, interrupts: Interrupts) -> float:
    """Bytes a second, read and written, of the device that the stage has."""
    told: dict[str, str] = {}

    def listen(source: str, event: Event) -> None:
        if isinstance(event, ProcessReady):
            told.update(event.facts)

    with started(plan, [spec], interrupts, listener=listen, run_stage=tell_copy_rate):
        return float(told[FACT])
