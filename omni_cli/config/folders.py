"""The user's own configuration folders: from the command line, then from the environment."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

VARIABLE = "OMNI_CONFIG_DIR"


def config_folders(given: Sequence[Path], environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Absolute folders, nearest first: `--config-dir` in order, then those of OMNI_CONFIG_DIR (split as PATH is)."""
    listed = [Path(part) for part in environ.get(VARIABLE, "").split(os.pathsep) if part]
    return tuple(Path(os.path.abspath(folder.expanduser())) for folder in (*given, *listed))
