"""Where request media comes from: a file or bytes, read once, with the name that every message about it uses.

One snapshot of the bytes is sniffed, hashed and decoded, so a file that changes meanwhile cannot slip past a
check. It does not look at the content.
"""

import hashlib
import os
import select
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from omni_cli.errors import InputError, reason
from omni_cli.inputs.media import Decoded

Noun = Literal["image", "audio", "video", "text"]
Media = Path | bytes

_WRITER_WAIT_S = 10.0  # for the program at the other end of a named pipe to be started


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The bytes of one piece of media. `param` is the content part they came from; None for a file."""

    label: str
    param: str | None
    data: bytes

    def refuse(self, reason: str) -> InputError:
        """The error to raise when this media cannot be used; it starts with the label."""
        return InputError(f"{self.label}: {reason}", param=self.param)

    def decoded(self, array: NDArray[Any], notes: Sequence[str], fps: float = 0.0) -> Decoded:
        """What became of it, with the digest of the bytes as they came."""
        digest = hashlib.sha256(self.data).hexdigest()
        return Decoded(label=self.label, array=array, fps=fps, sha256=digest, notes=tuple(notes))


def open_source(media: Media, *, noun: Noun, label: str | None, max_bytes: int) -> Source:
    """Reads a path (relative to the working folder) or takes bytes; refuses the absent, empty or too large.

    Without a label a file is called by noun and absolute path, and bytes by the noun alone.
    Raises InputError.
    """
    if isinstance(media, bytes):
        source = Source(label=label or noun, param=label, data=media)
    else:
        path = os.path.abspath(media)
        name = label or f"{noun} file {path}"
        source = Source(label=name, param=label, data=_read(path, name, max_bytes))
    if not source.data:
        raise source.refuse("is empty (0 bytes)")
    if len(source.data) > max_bytes:
        raise source.refuse(_too_large(len(source.data), max_bytes))
    return source


def _read(path: str, label: str, max_bytes: int) -> bytes:
    try:
        # Opening a pipe that nobody writes to would otherwise wait for ever.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISFIFO(status.st_mode):
                _await_writer(file.fileno(), label)
            os.set_blocking(file.fileno(), True)
            if stat.S_ISREG(status.st_mode) and status.st_size > max_bytes:
                raise InputError(f"{label}: {_too_large(status.st_size, max_bytes)}")
            # One byte more than allowed: a pipe or a device declares no size, and must not fill the memory.
            return file.read(max_bytes + 1)
    except OSError as error:
        raise InputError(f"{label}: cannot be read: {reason(error)}") from error
    except ValueError as error:  # a path with a NUL character
        raise InputError(f"{label}: is not a path: {error}") from error


def _await_writer(pipe: int, label: str) -> None:
    """Returns when there is something to read, or somebody has the other end open: who writes may be slow."""
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    if waiting.poll(_WRITER_WAIT_S * 1000):
        return
    try:
        os.read(pipe, 1)  # of a pipe without a writer the end, of one with a writer BlockingIOError
    except BlockingIOError:
        return
    raise InputError(f"{label}: is a pipe, and nobody has opened it to write for {_WRITER_WAIT_S:g} s")


def _too_large(size: int, max_bytes: int) -> str:
    return f"is larger than the limit of {max_bytes} bytes (it has at least {size})"
