"""A recipe and the recipes that it builds on, found by name or as a file. Reads them; composing is `compose`'s."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from omni_cli.config.files import YamlFile, read_yaml, shown
from omni_cli.config.library import RECIPE, Library
from omni_cli.config.report import COMMAND_LINE
from omni_cli.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """`name` is what Hydra knows it by in the group `recipe`, `title` what a person calls it."""

    name: str
    title: str
    file: YamlFile


def is_file(recipe: str) -> bool:
    """A recipe given as a file: `./x.yaml`, `/a/x.yaml`, `~/x.yaml`, `x.yaml`. A name has no ending."""
    return recipe.endswith((".yaml", ".yml"))


def recipe_chain(library: Library, recipe: str) -> tuple[RecipeFile, ...]:
    """The recipe first, then every recipe that its defaults lists lead to, each once. ConfigError: absent, broken,
    or a recipe that includes itself."""
    if is_file(recipe):
        path = Path(os.path.abspath(Path(recipe).expanduser()))
        if not os.path.isfile(path):
            raise ConfigError(f"recipe ({COMMAND_LINE}): there is no file {shown(path)} ({path})")
        start = RecipeFile(name="@file", title=path.stem, file=read_yaml(path))
    else:
        path = library.find(RECIPE, recipe, f"{RECIPE} ({COMMAND_LINE})")
        start = RecipeFile(name=recipe, title=recipe, file=read_yaml(path))
    found: dict[str, RecipeFile] = {}
    _follow(library, start, found, ())
    return tuple(found.values())


def _follow(library: Library, recipe: RecipeFile, found: dict[str, RecipeFile], above: tuple[str, ...]) -> None:
    if recipe.name in above:
        circle = " -> ".join((*above[above.index(recipe.name) :], recipe.name))
        raise ConfigError(f"{recipe.file.where(('defaults',))}: the recipe includes itself: {circle}")
    if recipe.name in found:
        return
    found[recipe.name] = recipe
    for name in _parents(recipe):
        path = _beside(recipe, name) or library.find(RECIPE, name, recipe.file.where(("defaults",)))
        _follow(library, RecipeFile(name=name, title=name, file=read_yaml(path)), found, (*above, recipe.name))


def _beside(recipe: RecipeFile, name: str) -> Path | None:
    """A recipe given as a file may build on its neighbours."""
    path = recipe.file.path.parent / f"{name}.yaml"
    return path if recipe.name.startswith("@") and os.path.isfile(path) else None


def _parents(recipe: RecipeFile) -> Iterator[str]:
    """The names of the recipes in a defaults list, as Hydra resolves them: relative to the recipe's own subgroup."""
    entries = recipe.file.data.get("defaults") or []
    if not isinstance(entries, list):
        raise ConfigError(f"{recipe.file.where(('defaults',))}: `defaults` must be a list")
    folder = PurePosixPath(recipe.name).parent
    for entry in entries:
        if isinstance(entry, str) and entry != "_self_":
            target = entry.removeprefix("optional ").partition("@")[0].strip()
            if target.startswith(f"/{RECIPE}/"):
                yield target.removeprefix(f"/{RECIPE}/")
            elif not target.startswith("/"):
                yield (folder / target).as_posix()
        elif isinstance(entry, dict):
            for group, name in entry.items():
                if str(group).partition("@")[0].strip("/ ") == RECIPE and isinstance(name, str):
                    yield name
