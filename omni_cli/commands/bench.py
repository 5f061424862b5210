"""`omni bench`: measures this machine and this version. A missed aim is a result, not a failure."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def _bench() -> None:
    """Measure throughput, latency and overheads."""


@app.command("overhead")
def overhead(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with every sample.")] = False,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="PAGE.md", help="Put the table into this page as well.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few repetitions: to see that it works.")] = False,
) -> None:
    """What the machinery itself costs: requests a second, the trace, a control hop, a payload.

    Takes about a minute. Exit code 1 if something does not work, 0 whatever the figures are.
    """
    from omni_cli.bench.effort import FULL, QUICK
    from omni_cli.bench.overhead import measure_overhead
    from omni_cli.bench.page import write_section
    from omni_cli.bench.report import HEADER, document, markdown, rows
    from omni_cli.console import logging_to
    from omni_cli.launch.signals import Interrupts
    from omni_cli.table import stdout, table

    with Interrupts() as interrupts, logging_to(None, quiet=True):
        measured = measure_overhead(QUICK if quick else FULL, interrupts, _say)
    if as_json:
        typer.echo(json.dumps(document(measured), indent=2))
    else:
        stdout().print(table(HEADER, rows(measured.figures)))
        for name, value in (("plan", measured.digest), *measured.machine):
            typer.echo(f"{name}: {value}")
    if write is not None:
        command = f"omni bench overhead{' --quick' if quick else ''} --write {write}"
        write_section(write, "omni bench overhead", markdown(measured, command))
        typer.echo(f"written to {write}", err=True)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
