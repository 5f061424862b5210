"""`omni trace diff`: two runs side by side, what was decided and what the time went into. Only reads."""

import json
from typing import Annotated

import typer

from omni_cli.artifacts.run_folder import OUTPUTS
from omni_cli.trace.diff import Run, compare
from omni_cli.trace.diff_show import document, print_comparison
from omni_cli.trace.reader import find_trace

app = typer.Typer()


@app.command("diff")
def diff_traces(
    a: Annotated[str, typer.Argument(metavar="A", help="A run, as for `omni trace show`.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another run.")] = "latest",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, times in ms.")] = False,
) -> None:
    """Were the same requests decided alike in two runs, and where is the one slower than the other?

    Exit code 1 if a request was decided otherwise.
    """
    from rich.console import Console

    one, other = Run.read(find_trace(a, OUTPUTS)), Run.read(find_trace(b, OUTPUTS))
    found = compare(one, other)
    if as_json:
        typer.echo(json.dumps(document(one, other, found), indent=2))
    else:
        print_comparison(Console(), one, other, found)
    if found.differences:
        raise typer.Exit(1)
