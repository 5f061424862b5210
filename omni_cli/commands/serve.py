"""`omni serve`: plan, port, stages, server, in this order; a port that is taken is found before weights are loaded."""

import typer

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    words: list[str] = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="recipe=NAME, serve.port=8001 and so on; `omni plan --explain` lists them."
    ),
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Only warnings and errors."),
) -> None:
    """Serve an OpenAI-compatible API over a pipeline of stage processes."""
    from omni_cli.server.process import serve_once

    raise typer.Exit(serve_once(tuple(words or ()), quiet=quiet))
