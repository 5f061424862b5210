"""What a person sees beside results: log lines on stderr and in the run's own log, once each, with the stage's name."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omni_cli.errors import OmniError

_STAGE = "omni.stage."


class _Formatter(logging.Formatter):
    """`warning talker.0: text`; lines of the control plane itself have no name."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()} "
        stage = f"{record.name.removeprefix(_STAGE)}: " if record.name.startswith(_STAGE) else ""
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return f"{level}{stage}{text}"


@contextmanager
def logging_to(path: Path | None, *, quiet: bool) -> Iterator[None]:
    """Inside, everything from INFO up goes to stderr (with `quiet` only warnings) and, all of it, to the file.

    An error that ends what is inside goes to the file alone: on the screen the command's last line says it.
    """
    root = logging.getLogger("omni")
    screen = logging.StreamHandler(sys.stderr)
    screen.setLevel(logging.WARNING if quiet else logging.INFO)
    screen.setFormatter(_Formatter())
    handlers: list[logging.Handler] = [screen]
    if path is not None:
        file = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        handlers.append(file)
    level, root.propagate = root.level, False
    root.setLevel(logging.INFO)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    except OmniError as error:
        for handler in handlers[1:]:
            handler.handle(root.makeRecord("omni", logging.ERROR, "", 0, str(error), (), None))
        raise
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
        root.propagate = True
