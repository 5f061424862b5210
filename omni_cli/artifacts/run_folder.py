"""The folder of one run: `<base>/<recipe>/<time>/`, created for this run alone, with the names of the files in it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from omni_cli.artifacts.atomic import failed, make_folder, write_text
from omni_cli.artifacts.names import safe_name
from omni_cli.errors import ConfigError

OUTPUTS = Path("outputs")
_MAX_SAME_SECOND = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Absolute path of a run, and where its files are."""

    path: Path

    @classmethod
    def create(cls, *, recipe: str, started_at: datetime, base: Path = OUTPUTS) -> "RunFolder":
        """Makes a folder that did not exist; runs of the same second get `-2`, `-3`, ... `base` is relative to the cwd.

        A recipe called `smoke/text` keeps its two levels. Raises ArtifactError.
        """
        levels = [safe_name(level) for level in recipe.split("/") if level not in ("", ".", "..")]
        parent = Path(os.path.abspath(base)).joinpath(*(levels or ["run"]))
        make_folder(parent)
        stamp = started_at.strftime("%Y%m%d-%H%M%S")
        for number in range(1, _MAX_SAME_SECOND):
            path = parent / (stamp if number == 1 else f"{stamp}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                raise failed(path, error) from error
            return cls(path=path)
        raise failed(parent, FileExistsError(f"{_MAX_SAME_SECOND} runs are called {stamp}"))

    @classmethod
    def claim(cls, path: Path, otherwise: str = "") -> "RunFolder":
        """The very folder that the user named: it must be absent or empty; `otherwise` is what else can be done. Raises
        ConfigError, ArtifactError."""
        path = Path(os.path.abspath(path))
        if os.path.exists(path) and not os.path.isdir(path):
            raise ConfigError(f"{path}: is no folder: name one that is empty or absent")
        make_folder(path)
        try:
            occupied = any(path.iterdir())
        except OSError as error:
            raise failed(path, error) from error
        if occupied:
            raise ConfigError(f"{path}: holds files already: name an empty folder{otherwise}")
        return cls(path=path)

    @classmethod
    def reopen(cls, path: Path) -> "RunFolder":
        """The folder of an earlier run, to read it or to go on with it. Raises ConfigError."""
        run = cls(path=Path(os.path.abspath(path)))
        if not os.path.isdir(run.path):
            raise ConfigError(f"{run.path}: there is no such run folder")
        if not run.manifest.exists() and not run.results.exists():
            raise ConfigError(f"{run.path}: is no run folder: it has neither manifest.json nor results.jsonl")
        return run

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    def keep_plan(self, document: Mapping[str, Any]) -> None:
        """What the run is carried by; its trace cannot be replayed without. Raises ArtifactError."""
        write_text(self.plan, json.dumps(document, ensure_ascii=False, indent=2) + "\n")

    @property
    def trace(self) -> Path:
        return self.path / "trace.jsonl"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def results(self) -> Path:
        return self.path / "results.jsonl"

    def request_folder(self, request_id: str) -> Path:
        """Where the files of a request go; the same for the same id, whether or not it exists yet."""
        return self.path / safe_name(request_id)
