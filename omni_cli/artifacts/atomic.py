"""Writes a file whole or not at all: a reader never meets half of one, and a failure leaves nothing behind."""

import errno
import os
import re
import secrets
from pathlib import Path

from omni_cli.errors import ArtifactError, reason

_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_REMEDIES = {
    errno.ENOSPC: "free some space there, or write elsewhere with --out",
    errno.EDQUOT: "free some of your quota there, or write elsewhere with --out",
    errno.EFBIG: "the file size limit (ulimit -f) is in the way",
    errno.EACCES: "choose a folder that you may write to with --out",
    errno.EPERM: "choose a folder that you may write to with --out",
    errno.EROFS: "choose a folder that you may write to with --out",
}


def write_bytes(path: Path, data: bytes) -> None:
    """Writes beside the target, flushes to the disk, then renames over it. Raises ArtifactError naming the path."""
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise failed(path, error) from error


def write_text(path: Path, text: str) -> bytes:
    """As `write_bytes`, in UTF-8 whatever the locale, line ends untouched; returns the bytes written."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        where = f"{path}: the text cannot be written as UTF-8"
        raise ArtifactError(f"{where}: {error.reason} (character {error.start})") from error
    write_bytes(path, data)
    return data


def make_folder(path: Path) -> None:
    """Creates a folder and its parents where they are missing. Raises ArtifactError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise failed(path, error) from error


def remove_temporaries(folder: Path) -> None:
    """Removes what a killed writer left under `folder`; nobody else may be writing there."""
    try:
        for path in folder.rglob(".*.tmp"):
            if _TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise failed(folder, error) from error


def write_all(descriptor: int, data: bytes) -> None:
    """Hands all of `data` to the kernel; one call may take only a part. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def failed(path: Path, error: OSError) -> ArtifactError:
    """The error to raise for a path that could not be written: what, where, and what to do."""
    remedy = _REMEDIES.get(error.errno or 0)
    advice = f": {remedy}" if remedy else ""
    return ArtifactError(f"{os.path.abspath(path)}: cannot be written: {reason(error)}{advice}")
