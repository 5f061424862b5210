"""`omni bench stage`: the steps of one stage, alone on its device, per batch size, against what they have to read.

The floor of a step is the bytes that it must read (the family contract's `step_bytes`) by the bandwidth of the device's
memory, as a copy within it measures it, or as it is given. No kernel can be faster; a long chunk of code2wav is bound
by arithmetic instead. So is a denoising step: its floor is its FLOP (`step_flops`) by those of a product of matrices.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from omni_cli.bench.alone import LonelyStage, device_rates, lonely_spec, peak_fact
from omni_cli.bench.figure import Figure, by_key, number, spread
from omni_cli.bench.level import counted, counter_names
from omni_cli.bench.prepared import Prepared
from omni_cli.bench.report import Report
from omni_cli.bench.sized import SizedRequests
from omni_cli.bench.steps import StageLoad, stage_load
from omni_cli.deployment import deployed
from omni_cli.errors import ConfigError
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.model import StagePlan
from omni_cli.streams import say
from stages.events import StepDone
from stages.messages import REQUEST
from stages.models.registry import Feed, RequestSize

_TEXT_TOKENS = 64  # of the text that a talker speaks
_WARM_STEPS = 8

_HEADER = ("batch", "steps", "step ms", "between ms", "floor ms", "step / floor", "prefill ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSteps:
    """The full steps of one batch size; `prefill_ms` is the time of all steps before them. `floor_ms` and the `flop` of
    a step: None if the family has no formula."""

    batch: int
    load: StageLoad
    prefill_ms: float
    floor_ms: float | None
    flop: int | None = None

    def figures(self) -> dict[str, Figure]:
        samples: dict[str, tuple[str, Iterable[float]]] = {
            "step_ms": ("a step", self.load.step_ms),
            "prefill_ms": ("prefill", [self.prefill_ms]),
            "gap_ms": ("between two steps", self.load.gap_ms),
            "floor_ms": ("floor", [self.floor_ms] if self.floor_ms else []),
        }
        figures = [(key, f"batch {self.batch}, {title}", "ms", found) for key, (title, found) in samples.items()]
        rates = [self.flop / ms / 1e9 for ms in self.load.step_ms] if self.flop else []
        return by_key([*figures, ("tflop_per_s", f"batch {self.batch}, matrix products", "TFLOP/s", rates)])

    def row(self, counters: Iterable[str]) -> tuple[str, ...]:
        found = self.figures()
        return (
            str(self.batch),
            str(self.load.steps),
            *(spread(found.get(key)) for key in ("step_ms", "gap_ms")),
            number(self.floor_ms) if self.floor_ms else "-",
            number(found["step_ms"].median / self.floor_ms) if self.floor_ms else "-",
            number(self.prefill_ms),
            *([number(found["tflop_per_s"].median)] if self.flop else []),
            *counted(self.load, counters),
        )


@dataclass(slots=True, kw_only=True)
class StageBench:
    """What is to be measured, and what was. `context` is the sequence before the first measured step, in tokens;
    `bandwidth` in bytes a second and `peak` in FLOP a second are 0 until they are known."""

    prepared: Prepared
    name: str
    batches: tuple[int, ...]
    context: int
    steps: int
    seed: int
    bandwidth: float
    peak: float = 0.0
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
        if plan.image is not None and not self._denoises:
            raise ConfigError(f"{self.name} takes no steps that could be measured: it has one a request")
        image = self._requests(1).image
        budget = self.stage.tuning.step_tokens
        if plan.image is not None and image is not None and budget is not None:
            tokens = image.width * image.height // plan.image.multiple**2 * (2 if image.guided else 1)
            if most > 1 and most * tokens > budget:
                raise ConfigError(
                    f"a batch of {most}: its steps have {most * tokens} latent tokens, and {budget} is the most; raise "
                    f"deploy.stages.{self.name}.step_tokens, or measure less (--batch)"
                )

    def measure(self, interrupts: Interrupts) -> Report:
        """Starts the stage once for all batch sizes; before it, a process that measures the device if need be."""
        plan, family = self.prepared.plan, self.prepared.loaded.family
        spec = lonely_spec(plan, self.name, secrets.token_hex(4))
        requests = self._requests(self.steps)
        if (family.step_bytes and not self.bandwidth) or (requests.step_flop and not self.peak):
            rates = device_rates(plan, self.name, interrupts)
            self.bandwidth = self.bandwidth or (rates.bytes_per_s if family.step_bytes else 0.0)
            self.peak = self.peak or (rates.flop_per_s if requests.step_flop else 0.0)
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
        counters = counter_names(found.load for found in self.found)
        rate = ("TFLOP/s",) if requests.step_flop else ()
        table = (*_HEADER, *rate, *counters), [found.row(counters) for found in self.found]
        memory = (("bandwidth", f"{self.bandwidth / 1e9:.0f} GB/s"),) if self.bandwidth else ()
        facts = (*memory, *peak_fact(self.peak))
        return self.prepared.report(("stage", self.name), [table], {"figures": figures}, requests.notes, machine=facts)

    @property
    def _denoises(self) -> bool:
        return self.stage.execution_type == "diffusion"

    @property
    def _fed(self) -> bool:
        return any(edge.producer != REQUEST for edge in self.stage.inputs)

    def _carry(self, lonely: LonelyStage, batch: int, steps: int) -> list[StepDone]:
        first, then = self._chunks
        requests = self._requests(steps)
        orders = [(requests.make(number), self._feed(requests.size, requests.draw(number))) for number in range(batch)]
        return lonely.carry(orders, (1,) if self.stage.execution_type == "llm_ar" else (first, *[then] * steps))

    @property
    def _chunks(self) -> tuple[int, int]:
        """Frames of the first message, and of each one behind it."""
        return self.stage.tuning.first_chunk_frames or 1, self.stage.tuning.chunk_frames or 1

    def _requests(self, steps: int) -> SizedRequests:
        first, then = self._chunks
        frames = steps if self.stage.execution_type == "llm_ar" else first + steps * then
        text = _TEXT_TOKENS if self._fed else steps + 1
        size = RequestSize(prompt_tokens=self.context, text_tokens=text, frames=frames)
        return SizedRequests.of(self.prepared.loaded, self.prepared.plan, size, self.seed).of_steps(steps)

    def _feed(self, size: RequestSize, draw: Random) -> Feed:
        feed = self.prepared.loaded.family.feed
        return feed(self.prepared.plan.model.path, self.name, size, draw) if feed is not None and self._fed else ()

    def _judged(self, batch: int, steps: Sequence[StepDone]) -> BatchSteps:
        usual = self.stage.tuning.chunk_frames or 1

        def full(step: StepDone) -> bool:
            if self._denoises:
                return len(step.rows) == batch and step.rows[0].phase == "denoise"
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
        floor_ms, row = None, self._requests(self.steps).step_flop
        flop = None if row is None else row * batch
        if flop is not None and self.peak:
            floor_ms = 1e3 * flop / self.peak
        if floor is not None and self.bandwidth:
            behind = self.context + len(measured) // 2
            floor_ms = 1e3 * floor(model.path, self.name, model.dtype, batch, behind) / self.bandwidth
        return BatchSteps(
            batch=batch,
            load=stage_load(self.name, "unit", [measured], 1.0, ()),
            prefill_ms=sum((step.end_ns - step.t_ns) / 1e6 for step in steps if step.index < measured[0].index),
            floor_ms=floor_ms,
            flop=flop,
        )
