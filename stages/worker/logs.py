"""Sends what a stage process logs to the parent, record by record, so that it is logged once and under its name."""

import contextlib
import logging

from stages.messages import LogLine
from stages.worker.channel import Outbox


class ForwardingHandler(logging.Handler):
    """Each record becomes a `LogLine` at once. With the parent gone there is nobody left to tell."""

    def __init__(self, process: str, outbox: Outbox) -> None:
        super().__init__()
        self._process = process
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except (TypeError, ValueError) as error:  # a caller's mistake in a log call must not end the stage
            text = f"{record.msg!r} with {record.args!r}: {error}"
        line = LogLine(process=self._process, level=record.levelno, logger=record.name, text=text)
        with contextlib.suppress(OSError):
            self._outbox.put(line)


def forward_logs(process: str, level: int, outbox: Outbox) -> None:
    """Makes the parent the only place where this process logs, warnings included."""
    root = logging.getLogger()
    root.handlers[:] = [ForwardingHandler(process, outbox)]
    root.setLevel(level)
    logging.captureWarnings(True)
