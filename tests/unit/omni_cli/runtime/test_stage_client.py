"""The reader thread of a stage: what it passes on, what it logs itself, and how it ends."""

import logging
import threading
from queue import SimpleQueue

import pytest

from omni_cli.runtime.stage_client import Received, StageClient
from stages.events import StepReport
from stages.messages import LogLine, ProcessFailed, Turn


class Handle:
    """A process that says what it was given, then dies."""

    stage, process = "talker", "talker.0"

    def __init__(self, *messages: StepReport | LogLine | ProcessFailed) -> None:
        self._messages = iter(messages)

    def send(self, turn: Turn) -> None:
        raise BrokenPipeError

    def receive(self) -> StepReport | LogLine | ProcessFailed:
        for message in self._messages:
            return message
        raise EOFError

    def reap(self) -> None:
        pass

    def death(self) -> str:
        return "exit code 1"


def test_reports_are_passed_on_and_log_lines_logged_once_under_the_stages_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    line = LogLine(process="talker.0", level=logging.INFO, logger="x", text="100 % loaded")
    report = StepReport(process="talker.0", seq=0, events=())
    received: SimpleQueue[Received] = SimpleQueue()
    client = StageClient(Handle(line, report), lambda client, message: received.put(message))
    client.start()
    assert [received.get(timeout=10) for _ in range(2)] == [report, None]
    assert client.join_writer(10)
    assert [(record.name, record.message) for record in caplog.records] == [("omni.stage.talker.0", "100 % loaded")]


def test_what_is_queued_is_sent_before_the_writer_ends() -> None:
    reading, sent = threading.Event(), []

    class Deaf(Handle):
        def send(self, turn: Turn) -> None:
            reading.wait()
            sent.append(turn)

    client = StageClient(Deaf(), lambda client, message: None)
    turns = [Turn(commands=(), sent_ns=number) for number in range(3)]
    for turn in turns:
        client.send(turn)
    client.close()
    client.start()
    assert not client.join_writer(0.01)
    reading.set()
    assert client.join_writer(10)
    assert sent == turns
