"""The command line's entry: finds the verb, hands over, and turns every ending into a message and an exit code.

A verb's module is imported only when it is called, so that `omni --help` costs nothing. Must not know what verbs do.
"""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from omni_cli.errors import OmniError

EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PIPE, EXIT_TERMINATED = 1, 130, 141, 143


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """`module` has the verb's typer application as `app`. A verb whose module is absent does not exist."""

    module: str
    help: str


VERBS = {
    "run": Verb(module="omni_cli.commands.run", help="Run requests through a pipeline of stage processes."),
    "plan": Verb(module="omni_cli.commands.plan", help="Show what would run where, and where each value comes from."),
    "recipe": Verb(module="omni_cli.commands.recipe", help="List, show, copy and validate recipes."),
    "trace": Verb(module="omni_cli.commands.trace", help="Show a run's timeline, or check that nothing went wrong."),
    "bench": Verb(module="omni_cli.commands.bench", help="Measure throughput, latency and overheads."),
    "doctor": Verb(module="omni_cli.commands.doctor", help="Look at versions, devices, limits and leftovers."),
}


def available_verbs() -> list[str]:
    return [name for name, verb in VERBS.items() if find_spec(verb.module)]


_TYPER_COMPLETION = ("install_completion", "show_completion")  # typer gives them to every application; omni has its own


class _Verbs(TyperGroup):
    """The verbs as commands. Listing them imports none of them; calling one imports that one."""

    def list_commands(self, ctx: Any) -> list[str]:
        return available_verbs()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        return TyperCommand(cmd_name, help=VERBS[cmd_name].help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}  # for suggestions
        name, found, rest = super().resolve_command(ctx, args)
        if name is None or found is None:
            return name, found, rest
        command = typer.main.get_command(import_module(VERBS[name].module).app)
        command.name = name
        command.params = [param for param in command.params if param.name not in _TYPER_COMPLETION]
        return name, command, rest


app = typer.Typer(
    name="omni",
    cls=_Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Runs omni-modal models as a pipeline of stage processes, planned from YAML.",
)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"omni {version('omni-stages')}")
        raise typer.Exit


def _completion(value: bool) -> None:
    if value:
        from omni_cli.completion import BASH

        typer.echo(BASH)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
    show_completion: bool = typer.Option(
        False, "--show-completion", callback=_completion, is_eager=True, help="Print a completion script for bash."
    ),
) -> None:
    pass


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command line and exits: 0 done, 1 failed, 2 refused, 130 interrupted, 143 terminated."""
    _speak_utf8()
    signal.signal(signal.SIGTERM, _terminated)
    args = list(sys.argv[1:] if argv is None else argv)
    sys.exit(_run(args))


def _run(args: list[str]) -> int:
    try:
        if "_OMNI_COMPLETE" in os.environ:
            from omni_cli.completion import complete

            return complete(args)
        app(args, prog_name="omni")
    except OmniError as error:
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except SystemExit as ending:
        # Typer turns a broken pipe into exit code 1, which here would say that something failed.
        return _reader_gone() if isinstance(ending.__context__, BrokenPipeError) else _finished(ending.code)
    except Exception as error:
        if os.environ.get("OMNI_TRACEBACK"):
            raise
        return _fail(
            f"internal error: {type(error).__name__}: {error} (OMNI_TRACEBACK=1 shows where; please report it)",
            EXIT_FAILED,
        )
    return 0


def _finished(code: object) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_gone()
    return code if isinstance(code, int) else EXIT_FAILED if code else 0


def _fail(message: str, code: int) -> int:
    try:
        sys.stdout.flush()
        print(f"omni: {message}", file=sys.stderr)
    except BrokenPipeError:
        _reader_gone()
    return code


def _reader_gone() -> int:
    """Whoever read the output has left (`| head -1`): say nothing, also when Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_PIPE


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(EXIT_TERMINATED)


def _speak_utf8() -> None:
    """UTF-8 on all three streams, whatever the locale says; file names that are not UTF-8 survive the round trip."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace" if stream is sys.stderr else "surrogateescape")
