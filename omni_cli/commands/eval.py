"""`omni eval`: asks a checkpoint what it should know and prints how much of it is right."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def evaluate(
    words: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="recipe=NAME, group choices and values."),
    only: str = typer.Option(
        None, "--only", metavar="GROUP[,GROUP..]", help="text, seeing, hearing, speech, pictures."
    ),
    count: Annotated[int | None, typer.Option("--count", min=1, help="So many of each topic. Default: all.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Keys every draw, and which items --count keeps.")] = 0,
    out: Path = typer.Option(None, "--out", help="The run folder; must be absent or empty."),
    as_json: bool = typer.Option(False, "--json", help="The scores as JSON."),
    check: bool = typer.Option(False, "--check", help="Exit code 1 if a score is not at its bar."),
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Only scores, warnings and errors."),
) -> None:
    """Ask a checkpoint what it should know, and print the scores of its answers.

    Asks on the same path as `omni run`. A judge whose package is missing is named, and what it would have judged is
    `skipped`. Exit code 1 if a request failed.
    """
    from omni_cli.eval.evaluate import evaluate

    given = {"only": only, "count": count, "seed": seed}
    command = shlex.join(["omni", "eval", *(words or ()), *(f"--{name}={v}" for name, v in given.items() if v)])
    report, code = evaluate(tuple(words or ()), command, only, count, seed, out, check=check, quiet=quiet)
    if as_json:
        typer.echo(report.json(), nl=False)
    else:
        report.print()
    raise typer.Exit(code)
