"""`omni bench run`, from its words and options to a run folder, a table and an exit code."""

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from omni_cli.artifacts.atomic import write_text
from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.bench.level import Level, Load
from omni_cli.bench.page import write_section
from omni_cli.bench.plot import draw
from omni_cli.bench.prepared import Prepared
from omni_cli.bench.serving import Serving
from omni_cli.bench.serving_report import SPREAD_NOTE, document, markdown, tables
from omni_cli.bench.sized import SizedRequests
from omni_cli.console import logging_to
from omni_cli.errors import ConfigError
from omni_cli.launch.signals import Interrupts
from omni_cli.streams import say
from omni_cli.table import stdout, table
from stages.models.registry import RequestSize

_LEAST_REQUESTS = 8
_NAMED = 3  # failures of a load that are told one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """`requests` of each load; None: twice as many as come at once, and 8 at least."""

    concurrency: tuple[int, ...]
    rates: tuple[float, ...] = ()
    requests: int | None = None
    size: RequestSize
    text_only: bool = False
    seed: int = 0

    @property
    def loads(self) -> tuple[Load, ...]:
        closed = (
            Load(callers=callers, requests=self.requests or max(_LEAST_REQUESTS, 2 * callers))
            for callers in self.concurrency
        )
        opened = (
            Load(rate=rate, requests=self.requests or max(_LEAST_REQUESTS, round(10 * rate))) for rate in self.rates
        )
        return (*closed, *opened)

    def argv(self) -> list[str]:
        """What repeats the measurement, behind `omni bench run` and the words."""
        given = {
            "concurrency": ",".join(map(str, self.concurrency)),
            "rate": ",".join(f"{rate:g}" for rate in self.rates),
            "requests": self.requests,
            "prompt-tokens": self.size.prompt_tokens,
            "text-tokens": self.size.text_tokens,
            "frames": self.size.frames,
            "seed": self.seed,
        }
        options = [
            word for name, value in given.items() if value not in ("", None) for word in (f"--{name}", f"{value}")
        ]
        return [*options, *(["--text-only"] if self.text_only else [])]


def bench_run(
    words: Sequence[str], options: BenchOptions, *, out: Path | None, json_to: Path | None, page: Path | None
) -> int:
    """0, or 1 if a request failed. Raises OmniError for what is refused, and for what cannot be started."""
    prepared = Prepared.of(words)
    loaded, plan, machine = prepared.loaded, prepared.plan, prepared.machine
    serving = Serving(plan=plan, requests=sized_requests(prepared, options), loads=options.loads)
    command = shlex.join(["omni", "bench", "run", *words, *options.argv()])
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        folder = (
            RunFolder.create(recipe=loaded.recipe, started_at=prepared.now) if out is None else RunFolder.claim(out)
        )
        write_text(folder.plan, json.dumps(plan.document(), ensure_ascii=False, indent=2) + "\n")
        stack.enter_context(logging_to(folder.path / "run.log", quiet=True))
        try:
            serving.measure(interrupts, folder.trace if loaded.config.trace.enabled else None, say)
        finally:
            if serving.levels:
                measured = json.dumps(document(serving, machine, command), ensure_ascii=False, indent=2) + "\n"
                for path in (folder.path / "bench.json", json_to):
                    if path is not None:
                        write_text(path, measured)
                write_text(folder.path / "bench.svg", draw(serving.levels))
                _print(serving)
                say(f"files: {folder.path}")
    if page is not None:
        name = prepared.section("run", *(["text"] if options.text_only else []))
        write_section(page, name, markdown(serving, machine, command))
        say(f"written to {page}")
    return int(any(level.failed for level in serving.levels))


def sized_requests(prepared: Prepared, options: BenchOptions) -> SizedRequests:
    loaded, plan = prepared.loaded, prepared.plan
    outputs = ("text",) if options.text_only else loaded.config.request.modalities or tuple(plan.outputs)
    missing = [output for output in outputs if output not in plan.outputs]
    if missing:
        raise ConfigError(f"{', '.join(missing)} is not deployed; there is {', '.join(plan.outputs)} (deploy.outputs)")
    return SizedRequests(loaded=loaded, size=options.size, outputs=outputs, seed=options.seed)


def _print(serving: Serving) -> None:
    for header, rows in tables(serving.levels):
        stdout().print(table(header, rows))
        stdout().print()
    stdout().print(f"{SPREAD_NOTE}\nplan: {serving.plan.digest}")
    say_failures({str(level.load): level for level in serving.levels})


def say_failures(levels: Mapping[str, Level]) -> None:
    for name, level in levels.items():
        for one in level.failed[:_NAMED]:
            say(f"{name}: {one.error}")
        if len(level.failed) > _NAMED:
            say(f"{name}: ... and {len(level.failed) - _NAMED} more")
