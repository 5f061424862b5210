"""The command line's entry: finds the verb, hands over, and turns every ending into a message and an exit code.

A verb's module is imported only when it is called, so that `omni --help` costs nothing. Must not know what verbs do.
"""

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from omni_cli import streams
from omni_cli.errors import ConfigError, OmniError

EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PIPE, EXIT_TERMINATED = 1, 130, 141, 143


VERBS = {
    "run": "Run requests through a pipeline of stage processes.",
    "serve": "Serve an OpenAI-compatible API over a pipeline.",
    "plan": "Show what would run where, and where each value comes from.",
    "recipe": "List, show, copy and validate recipes.",
    "trace": "Show, check, replay and compare what runs have recorded.",
    "bench": "Measure throughput, latency and overheads.",
    "eval": "Ask a checkpoint what it should know, and score its answers.",
    "doctor": "Look at versions, devices, limits and leftovers.",
}


def module_of(verb: str) -> str:
    """It has the verb's typer application as `app`. A verb whose module is absent does not exist."""
    return f"omni_cli.commands.{verb}"


def available_verbs() -> list[str]:
    return [verb for verb in VERBS if find_spec(module_of(verb))]


_TYPER_COMPLETION = ("install_completion", "show_completion")  # typer gives them to every application; omni has its own


class _Verbs(TyperGroup):
    """The verbs as commands. Listing them imports none of them; calling one imports that one."""

    def list_commands(self, ctx: Any) -> list[str]:
        return available_verbs()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        return TyperCommand(cmd_name, help=VERBS[cmd_name])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}  # for suggestions
        name, found, rest = super().resolve_command(ctx, args)
        if name is None or found is None:
            return name, found, rest
        command = typer.main.get_command(import_module(module_of(name)).app)
        command.name = name
        command.params = [param for param in command.params if param.name not in _TYPER_COMPLETION]
        if isinstance(command, TyperCommand):
            _check_options(command, ctx, rest)
        return name, command, rest


def _check_options(command: TyperCommand, ctx: Any, args: list[str]) -> None:
    """Of an option that is given twice, click would silently take the last; of one that is a key, it says only that
    there is none. Raises ConfigError."""
    parser = command.make_parser(ctx)
    parser.allow_interspersed_args = command.allow_interspersed_args  # that of `ctx` is for verbs
    parser.ignore_unknown_options = True  # found out where the command is run
    values, _, order = parser.parse_args(args=list(args))
    for param in order:
        single = isinstance(param, TyperOption) and not param.multiple and not param.is_flag
        if single and sum(other is param for other in order) > 1:
            raise ConfigError(f"{param.opts[-1]} is given twice; keep one")
    words = [word for param in command.params if param.nargs == -1 for word in values.get(param.name) or ()]
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        from omni_cli.completion import keys_called

        if keys := keys_called(option.removeprefix("--").replace("-", "_")):
            meant = " or ".join(f"{key}=..." for key in keys)
            raise ConfigError(f"no such option: {option}; a value is written {meant}")


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
    streams.prepare()
    signal.signal(signal.SIGTERM, _terminated)
    args = list(sys.argv[1:] if argv is None else argv)
    code = _run(args)
    sys.exit(_unwritten(error, code) if (error := streams.settle()) else code)


def _run(args: list[str]) -> int:
    try:
        if "_OMNI_COMPLETE" in os.environ:
            from omni_cli.completion import complete

            return complete(args)
        app(args, prog_name="omni")
    except OmniError as error:
        if error.__cause__ is not None and os.environ.get("OMNI_TRACEBACK"):
            traceback.print_exception(error)
        return _fail(str(error), error.exit_code)
    except BrokenPipeError as error:
        return _unwritten(error)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except SystemExit as ending:
        # Typer turns a broken pipe into exit code 1, which here would say that something failed.
        if isinstance(ending.__context__, BrokenPipeError):
            return _unwritten(ending.__context__)
        return ending.code if isinstance(ending.code, int) else EXIT_FAILED if ending.code else 0
    except Exception as error:
        if os.environ.get("OMNI_TRACEBACK"):
            raise
        if isinstance(error, OSError) and (failure := streams.settle()):
            return _unwritten(failure)
        return _fail(
            f"internal error: {type(error).__name__}: {error} (OMNI_TRACEBACK=1 shows where; please report it)",
            EXIT_FAILED,
        )
    return 0


def _fail(message: str, code: int) -> int:
    streams.put(sys.stdout, "")
    streams.say(f"omni: {message}")
    return code


def _unwritten(error: OSError, code: int = 0) -> int:
    """What was asked for could not be delivered. Nothing is said to a reader that has left (`| head -1`)."""
    streams.silence(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return code or EXIT_PIPE
    return _fail(f"stdout: cannot be written: {error.strerror}", code or EXIT_FAILED)


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(EXIT_TERMINATED)
