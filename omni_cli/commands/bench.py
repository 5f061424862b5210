"""`omni bench`: measures this machine and this version. A missed aim is a result, not a failure."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omni_cli.commands.numbers import numbers

if TYPE_CHECKING:
    from omni_cli.bench.prepared import Prepared

_MOST = (1 << 20) - 1  # of what is counted: a talker is asked for a token more than its frames


def _place(path: Path | None) -> Path | None:
    """Refuses before the measurement, not after it, what could not be written then."""
    if path is not None and (os.path.isdir(path) or not os.path.isdir(path.parent)):
        raise typer.BadParameter(f"{path} is a folder" if os.path.isdir(path) else f"there is no folder {path.parent}")
    return path


Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="recipe=NAME, group choices and values.", show_default=False),
]
Page = Annotated[
    Path | None,
    typer.Option("--write", metavar="PAGE.md", help="Put the tables into this page as well.", callback=_place),
]
PromptTokens = Annotated[int, typer.Option("--prompt-tokens", min=1, max=_MOST, help="With the chat template.")]
TextTokens = Annotated[int, typer.Option("--text-tokens", min=1, max=_MOST, help="Of each answer.")]
Frames = Annotated[int, typer.Option("--frames", min=1, max=_MOST, help="Frames of sound of each answer.")]
Peak = Annotated[
    float | None,
    typer.Option(
        "--peak", min=0.001, max=1e6, metavar="TFLOP/S", help="Of matrix products; measured if not given and needed."
    ),
]
TextOnly = Annotated[bool, typer.Option("--text-only", help="Ask for text alone, of the same deployment.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Keys all that is drawn: prompts, tokens, arrivals.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Figures with every sample.", callback=_place)
]

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def _bench() -> None:
    """Measure throughput, latency and overheads."""


@app.command("overhead")
def overhead(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with every sample.")] = False,
    write: Page = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few repetitions: to see that it works.")] = False,
) -> None:
    """What the machinery itself costs: requests a second, the trace, the server, a control hop, a payload.

    Takes about a minute. Exit code 1 if something does not work, 0 whatever the figures are.
    """
    from omni_cli.bench.overhead import FULL, QUICK, measure_overhead
    from omni_cli.console import logging_to
    from omni_cli.launch.signals import Interrupts

    with Interrupts() as interrupts, logging_to(None, quiet=True):
        report = measure_overhead(QUICK if quick else FULL, interrupts, _command(context))
    if as_json:
        typer.echo(report.json(), nl=False)
    else:
        report.print()
    report.put_into(write)


@app.command("run")
def run(
    context: typer.Context,
    words: Words = None,
    concurrency: Annotated[
        str | None, typer.Option("--concurrency", metavar="N[,N..]", help="Closed loop: so many callers. Default: 1.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="R[,R..]", help="Open loop: so many arrivals a second (Poisson).")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests", min=1, max=_MOST, help="Requests of each load. Default: twice those at once, 8 or more."
        ),
    ] = None,
    prompt_tokens: PromptTokens = 100,
    text_tokens: TextTokens = 64,
    frames: Frames = 250,
    text_only: TextOnly = False,
    peak: Peak = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", help="The run folder; must be absent or empty.")] = None,
    json_to: JsonFile = None,
    write: Page = None,
) -> None:
    """Requests of one size, all different, through a deployment: latency, sound, throughput, what each stage did.

    All loads are measured in one deployment, each after a warm-up of its own. Exit code 1 if a request failed.
    """
    from omni_cli.bench.load import Load
    from omni_cli.bench.prepared import Prepared
    from omni_cli.bench.serving import Serving, bench_run
    from omni_cli.bench.sized import SizedRequests
    from stages.models.registry import RequestSize

    closed = "1" if concurrency is None and rate is None else concurrency
    callers = () if closed is None else numbers("--concurrency", closed, int)
    rates = () if rate is None else numbers("--rate", rate, float)
    size = RequestSize(prompt_tokens=prompt_tokens, text_tokens=text_tokens, frames=frames)
    prepared = _with_meaning(context, Prepared.of(words or [], _command(context)))
    sized = SizedRequests.of(prepared.loaded, prepared.plan, size, seed, text_only=text_only)
    loads = Load.all_of(callers, rates, requests)
    serving = Serving(plan=prepared.plan, requests=sized, loads=loads, peak=(peak or 0.0) * 1e12)
    raise typer.Exit(bench_run(prepared, serving, out=out, json_to=json_to, page=write))


@app.command("stage")
def stage(
    context: typer.Context,
    words: Words = None,
    stage: Annotated[str, typer.Option("--stage", metavar="NAME", help="The stage of the plan.")] = "",
    batch: Annotated[str, typer.Option("--batch", metavar="N[,N..]", help="Requests in a step.")] = "1",
    tokens: Annotated[
        int, typer.Option("--context", min=1, max=_MOST, help="Tokens before the first measured step.")
    ] = 200,
    steps: Annotated[int, typer.Option("--steps", min=1, max=_MOST, help="Steps of each batch size.")] = 64,
    bandwidth: Annotated[
        float | None,
        typer.Option("--bandwidth", min=0.001, max=1e6, metavar="GB/S", help="Of memory; measured if not given."),
    ] = None,
    peak: Peak = None,
    seed: Seed = 0,
    json_to: JsonFile = None,
    write: Page = None,
) -> None:
    """One stage alone, in its own process with its real runner: its steps against the bytes that they must read, or
    the operations that they must do."""
    from omni_cli.bench.prepared import Prepared
    from omni_cli.bench.stage import StageBench
    from omni_cli.console import logging_to
    from omni_cli.launch.signals import Interrupts

    bench = StageBench(
        prepared=Prepared.of(words or [], _command(context)),
        name=stage,
        batches=numbers("--batch", batch, int),
        context=tokens,
        steps=steps,
        seed=seed,
        bandwidth=(bandwidth or 0.0) * 1e9,
        peak=(peak or 0.0) * 1e12,
    )
    with Interrupts() as interrupts, logging_to(None, quiet=True):
        report = bench.measure(interrupts)
    report.print()
    report.write(json_to)
    report.put_into(write)


@app.command("compare")
def compare(
    context: typer.Context,
    words: Words = None,
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="N[,N..]", help="Callers of omni, beside one; the library has one.")
    ] = "1",
    requests: Annotated[int, typer.Option("--requests", min=1, max=_MOST, help="Requests of each side.")] = 4,
    prompt_tokens: PromptTokens = 100,
    text_tokens: TextTokens = 64,
    frames: Frames = 250,
    text_only: TextOnly = False,
    seed: Seed = 0,
    json_to: JsonFile = None,
    write: Page = None,
) -> None:
    """The model's own library (`generate`, diffusers' pipeline) and omni over the same weights and requests, one after
    the other, and the ratios.

    On a CPU in float32 the answers are compared as well. Exit code 1 if a request failed or an answer differs.
    """
    from omni_cli.bench.compare import Comparison, comparable
    from omni_cli.bench.sized import SizedRequests
    from omni_cli.console import logging_to
    from omni_cli.launch.signals import Interrupts
    from stages.models.registry import RequestSize

    callers = numbers("--concurrency", concurrency, int)
    size = RequestSize(prompt_tokens=prompt_tokens, text_tokens=text_tokens, frames=frames)
    prepared = _with_meaning(context, comparable(words or [], _command(context)))
    sized = SizedRequests.of(prepared.loaded, prepared.plan, size, seed, text_only=text_only)
    comparison = Comparison(prepared=prepared, requests=sized, count=requests, concurrency=callers)
    with Interrupts() as interrupts, logging_to(None, quiet=True):
        report = comparison.measure(interrupts)
    report.print()
    for name, level in comparison.levels.items():
        level.say_failures(name)
    report.write(json_to)
    report.put_into(write)
    raise typer.Exit(int(comparison.failed))


_PLACES = ("--out", "--json", "--write")


_OF_ANSWERS = ("text_tokens", "frames", "text_only")  # what pictures have none of


def _with_meaning(context: typer.Context, prepared: "Prepared") -> "Prepared":
    """Refuses options that say nothing of what this family makes, and leaves them out of the command."""
    draws = prepared.plan.image is not None
    idle = _OF_ANSWERS if draws else ("peak",)
    for name in idle:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            why = "pictures have none: request.image.* says how they are drawn" if draws else "is for pictures"
            raise typer.BadParameter(why, param_hint=f"--{name.replace('_', '-')}")
    return replace(prepared, command=_command(context, idle))


def _command(context: typer.Context, without: Sequence[str] = ()) -> str:
    """What repeats this measurement, every value spelled out; not where its results go, nor what is `without` sense."""
    words = ["omni", "bench", context.info_name or ""]
    for param in context.command.params:
        value = context.params[param.name or ""]
        if param.name in without:
            continue
        if param.param_type_name == "argument":
            words += value or []
        elif param.opts[0] not in _PLACES and value is not None and value is not False:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words += [param.opts[0]] if value is True else [param.opts[0], text]
    return shlex.join(words)
