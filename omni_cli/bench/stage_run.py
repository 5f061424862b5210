"""`omni bench stage`, from its words and options to a table."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omni_cli.artifacts.atomic import write_text
from omni_cli.bench.figure import Measured
from omni_cli.bench.page import write_section
from omni_cli.bench.prepared import Prepared
from omni_cli.bench.report import document, section
from omni_cli.bench.stage import StageBench
from omni_cli.console import logging_to
from omni_cli.errors import ConfigError
from omni_cli.launch.signals import Interrupts
from omni_cli.streams import say
from omni_cli.table import stdout, table


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions:
    """`bandwidth_gb_s` in 10^9 bytes a second; None: measured."""

    stage: str
    batches: tuple[int, ...]
    context: int
    steps: int
    bandwidth_gb_s: float | None
    seed: int

    def argv(self) -> list[str]:
        """What repeats the measurement, behind `omni bench stage` and the words."""
        batches = ",".join(map(str, self.batches))
        given = f"--stage {self.stage} --batch {batches} --context {self.context} --steps {self.steps}".split()
        bandwidth = [] if self.bandwidth_gb_s is None else ["--bandwidth", f"{self.bandwidth_gb_s:g}"]
        return [*given, *bandwidth, "--seed", str(self.seed)]


def bench_stage(words: Sequence[str], options: StageOptions, *, json_to: Path | None, page: Path | None) -> None:
    """Raises OmniError for what is refused, and for what does not work."""
    prepared = Prepared.of(words)
    names = [stage.name for stage in prepared.plan.stages]
    if options.stage not in names:
        raise ConfigError(f"--stage {options.stage or 'is missing'}: the plan has {', '.join(names)}")
    bench = StageBench(
        loaded=prepared.loaded,
        plan=prepared.plan,
        stage=prepared.plan.stage(options.stage),
        batches=options.batches,
        context=options.context,
        steps=options.steps,
        seed=options.seed,
        bandwidth=(options.bandwidth_gb_s or 0.0) * 1e9,
    )
    with Interrupts() as interrupts, logging_to(None, quiet=True):
        bench.measure(interrupts, say)
    memory = [("memory", f"{bench.bandwidth / 1e9:.0f} GB/s")] if bench.bandwidth else []
    measured = Measured(
        digest=prepared.plan.digest,
        machine=(*prepared.machine, *memory),
        figures=tuple(figure for found in bench.found for figure in found.figures()),
    )
    command = shlex.join(["omni", "bench", "stage", *words, *options.argv()])
    header, rows = bench.table()
    stdout().print(table(header, rows))
    for name, value in (("plan", measured.digest), *memory):
        stdout().print(f"{name}: {value}")
    if json_to is not None:
        write_text(json_to, json.dumps({"command": command, **document(measured)}, indent=2) + "\n")
    if page is not None:
        text = section(command, [bench.table()], measured.digest, measured.machine)
        write_section(page, prepared.section("stage", options.stage), text)
        say(f"written to {page}")
