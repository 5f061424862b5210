"""`omni recipe`: the recipes there are, one of them, a copy to work on, and whether it would run. Starts nothing."""

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from omni_cli.config.files import read_yaml, shown
from omni_cli.config.library import RECIPE, Library
from omni_cli.config.load import load_config
from omni_cli.config.recipes import is_file
from omni_cli.errors import ConfigError, OmniError
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory, visible_devices
from omni_cli.table import stdout, table

app = typer.Typer(no_args_is_help=True, help="List, show, copy and validate recipes.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A recipe's name, or a file.", show_default=False)]


@app.command("ls")
def ls() -> None:
    """List the recipes, with what each is."""
    choices = Library.of().choices(RECIPE)
    stdout().print(table(("recipe", "what", "file"), ((n, _what(p), shown(p)) for n, p in sorted(choices.items()))))


@app.command("show")
def show(name: Name) -> None:
    """Print a recipe as it is written."""
    print(_path(name, Library.of()).read_text(encoding="utf-8"), end="")


@app.command("cp")
def cp(
    name: Name,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; a folder keeps the name.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Copy a recipe, to change it and run it with recipe=FILE."""
    source = _path(name, Library.of())
    destination = target / source.name if os.path.isdir(target) else target
    if destination.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{shown(destination)}: a recipe's file ends in .yaml")
    text = source.read_text(encoding="utf-8")
    try:
        with destination.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{shown(destination)} is there already; --force replaces it") from None
    except OSError as error:
        raise ConfigError(f"{shown(destination)} cannot be written: {error.strerror}") from None
    print(f"{shown(destination)}: run it with recipe={shown(destination)}")


@app.command("validate")
def validate(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Names or files; none is all.", show_default=False)
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="Plan as if the machine had so many GPUs.")] = None,
) -> None:
    """Compose, check and plan recipes; exit 2 if one would be refused."""
    inventory = visible_devices() if gpus is None else Inventory.imagined(gpus)
    refused = []
    for name in names or sorted(Library.of().choices(RECIPE)):
        try:
            planned = build_plan(load_config((), recipe=name), inventory)
        except OmniError as error:
            refused.append(f"{name}: {error}")
            print(f"{name}: refused")
        else:
            print(f"{name}: ok, {len(planned.stages)} stages, digest {planned.digest[:12]}")
    if refused:
        raise ConfigError("\n".join(refused))


def _path(name: str, library: Library) -> Path:
    """The file of a recipe; reads it, so that one that is broken is refused with file and line."""
    path = Path(name).expanduser() if is_file(name) else library.find(RECIPE, name, RECIPE)
    return read_yaml(path).path


def _what(path: Path) -> str:
    """What the header of a recipe says that it is, up to the first stop or colon; `show` has the rest."""
    with path.open(encoding="utf-8", errors="replace") as file:
        header = re.match(r"# What:\s+(.*(?:\n#  .*)*)", file.read(2000))
    return re.split(r"[.:;](?:\s|$)", re.sub(r"\s*\n#\s*", " ", header.group(1)))[0] if header else ""
