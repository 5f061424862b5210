"""What omni can build again and keeps in a cache folder: each thing is built once, whole or not at all. Torch-free."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path


def cache_root(environ: Mapping[str, str]) -> Path:
    """Where omni keeps what it can build again: `$OMNI_CACHE`, else `$XDG_CACHE_HOME/omni`, else `~/.cache/omni`."""
    if environ.get("OMNI_CACHE"):
        return Path(environ["OMNI_CACHE"]).expanduser()
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "omni"
    return Path(environ.get("HOME") or Path.home()) / ".cache" / "omni"


def built_once(root: Path, name: str, write: Callable[[Path], None]) -> Path:
    """The folder `checkpoints/<name>` below `root`, filled by `write` if it is not there.

    Safe when several processes build at once: each writes a folder of its own and renames it into place; the first one
    wins and the others use what it wrote. An `OSError` (no space, no permission) passes through.
    """
    final = root / "checkpoints" / name
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        write(scratch)
        for path in scratch.rglob("*"):
            if path.is_file():
                # Without this, a power loss after the rename could leave a complete-looking folder of empty files.
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        scratch.chmod(0o755)
        try:
            scratch.rename(final)
        except OSError:
            # Renaming onto a folder with files in it fails: somebody else was first.
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final
