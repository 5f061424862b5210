"""Where configuration files lie: the bundled groups and recipes, and folders of the user's own.

A folder of the user's may hold recipes (at its top or in `recipes/`) and group files (`deploy/...`, as in `conf/`);
its files come before bundled ones of the same name. Reads names only, never a file's content.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import omni_cli
from omni_cli.config.files import shown
from omni_cli.config.nearest import nearest
from omni_cli.errors import ConfigError

GROUPS = ("pipeline", "deploy", "request", "serve", "trace")
RECIPE = "recipe"
VARIABLE = "OMNI_CONFIG_DIR"


def bundled(name: str) -> Path:
    """The folder `conf` or `recipes`: inside an installed package, or at the root of a checkout."""
    package = Path(omni_cli.__file__).parent
    for folder in (package / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise ConfigError(f"the bundled folder `{name}` is missing beside {package}; install omni again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """`conf` and `recipes` are folders to look in, nearest first."""

    conf: tuple[Path, ...]
    recipes: tuple[Path, ...]

    @classmethod
    def of(cls, folders: Sequence[Path] | None = None) -> "Library":
        """`folders` are the user's own, nearest first; None takes those that OMNI_CONFIG_DIR lists, split as PATH is.
        Raises ConfigError for one that does not exist."""
        if folders is None:
            listed = [Path(part).expanduser() for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
            folders = [Path(os.path.abspath(folder)) for folder in listed]
        for folder in folders:
            if not os.path.isdir(folder):
                raise ConfigError(f"configuration folder {shown(folder)} does not exist")
        own = [folder / "recipes" for folder in folders] + list(folders)
        return cls(conf=(*folders, bundled("conf")), recipes=(*own, bundled("recipes")))

    @property
    def primary(self) -> Path:
        return self.conf[-1] / "config.yaml"

    def choices(self, group: str) -> dict[str, Path]:
        """Every name of a group and the file it stands for. The group `recipe` holds the recipes."""
        found: dict[str, Path] = {}
        folders = self.recipes if group == RECIPE else tuple(folder / group for folder in self.conf)
        for folder in folders:
            for path in sorted(folder.glob("*.yaml") if folder in self.conf else folder.rglob("*.yaml")):
                found.setdefault(path.relative_to(folder).with_suffix("").as_posix(), path)
        return found

    def find(self, group: str, name: str, where: str) -> Path:
        """The file of a choice. `where` says who asked, for the message of the ConfigError."""
        choices = self.choices(group)
        if name in choices:
            return choices[name]
        close = nearest(name, choices)
        hint = f"; the nearest is `{close}`" if close else ""
        raise ConfigError(f"{where}: there is no {group} `{name}`{hint}; there are: {', '.join(sorted(choices))}")
