"""Log records of a stage process: each one sent at once, none lost to a mistake, none in the way of the stage."""

import logging
import warnings

import pytest

from stages.messages import LogLine
from stages.worker.logs import ForwardingHandler, forward_logs


class Outbox:
    def __init__(self):
        self.lines = []
        self.gone = False

    def put(self, message):
        if self.gone:
            raise BrokenPipeError
        self.lines.append(message)


@pytest.fixture
def outbox():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    outbox = Outbox()
    forward_logs("talker.0", logging.INFO, outbox)
    yield outbox
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_records_are_forwarded_once_from_their_level_on(outbox):
    logging.getLogger("omni.x").info("loaded %d", 3)
    logging.getLogger("omni.x").debug("not this")
    assert outbox.lines == [LogLine(process="talker.0", level=logging.INFO, logger="omni.x", text="loaded 3")]


def test_a_traceback_travels_with_its_record(outbox):
    try:
        raise KeyError("gone")
    except KeyError:
        logging.getLogger("omni.x").exception("failed")
    (line,) = outbox.lines
    assert line.level == logging.ERROR
    assert line.text.startswith("failed\nTraceback")
    assert "KeyError: 'gone'" in line.text


def test_warnings_are_records_too(outbox):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert outbox.lines[0].logger == "py.warnings"


def test_a_mistake_in_a_log_call_is_shown_and_ends_nothing(outbox):
    record = logging.LogRecord("omni.x", logging.INFO, __file__, 1, "%d units", ("three",), None)
    (handler,) = (h for h in logging.getLogger().handlers if isinstance(h, ForwardingHandler))
    handler.handle(record)  # not through the logger: pytest's own handler raises for such a record
    (line,) = outbox.lines
    assert "'%d units'" in line.text
    assert "three" in line.text


def test_without_parent_there_is_silence(outbox):
    outbox.gone = True
    logging.getLogger("omni.x").info("anybody?")
    assert outbox.lines == []
