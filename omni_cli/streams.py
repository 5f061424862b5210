"""The three standard streams: there, in UTF-8, and quiet once nobody takes what is written. Knows no verb."""

import os
import sys
from typing import TextIO

_NAMES = ("stdin", "stdout", "stderr")
_UTF8_MODE = "PYTHONUTF8"


def prepare() -> None:
    """First thing in the process. May start it again: a locale without UTF-8 decides how arguments were decoded, and
    how file names are encoded, before any code of ours runs."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get(_UTF8_MODE) != "1":
        os.environ[_UTF8_MODE] = "1"
        os.execv(sys.executable, sys.orig_argv)
    for name in _NAMES:
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere(name))
        # file names that are not UTF-8 survive the round trip
        errors = "backslashreplace" if name == "stderr" else "surrogateescape"
        getattr(sys, name).reconfigure(encoding="utf-8", errors=errors)


def _nowhere(name: str) -> TextIO:
    """For a stream that was closed (`>&-`): its number must not become that of a run's file."""
    descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: the closed stream's own
    os.set_inheritable(descriptor, True)
    return open(descriptor, "r" if name == "stdin" else "w", encoding="utf-8")


def put(stream: TextIO, text: str) -> OSError | None:
    """Writes and flushes. If that fails, the stream is silenced and the error returned: BrokenPipeError means that the
    reader has left, any other that what was asked for could not be delivered."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        silence(stream)
        return error
    return None


def say(line: str) -> None:
    """A line on stderr, for a person. Lost if nobody takes it: what it is about has happened all the same."""
    put(sys.stderr, f"{line}\n")


def settle() -> OSError | None:
    """Last thing in the process: delivers what is still buffered, and returns what stdout could not take."""
    put(sys.stderr, "")
    return put(sys.stdout, "")


def silence(stream: TextIO) -> None:
    """From here on what is written goes nowhere, also when Python flushes at exit."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)
