"""The user's own configuration folders, from the environment: recipes and group files that come before bundled ones."""

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "OMNI_CONFIG_DIR"


def config_folders(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Absolute folders, nearest first, as OMNI_CONFIG_DIR lists them (split as PATH is)."""
    listed = [Path(part) for part in environ.get(VARIABLE, "").split(os.pathsep) if part]
    return tuple(Path(os.path.abspath(folder.expanduser())) for folder in listed)
