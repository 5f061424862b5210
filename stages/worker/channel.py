"""The two ends that a stage process holds: turns come in, reports go out, each on a one-way pipe with one writer.

Plain pickles over `multiprocessing.Connection`: no lock and no named semaphore, so that a process killed at any point
leaves nothing behind and can wedge nobody. Tensors never pass here.
"""

import select
import threading
from multiprocessing.connection import Connection

from stages.events import StepReport
from stages.messages import Beat, LogLine, ProcessFailed, Turn
from stages.wire import decode, encode


class Inbox:
    """Turns from the parent, read by one thread."""

    def __init__(self, reader: Connection) -> None:
        self._reader = reader
        self._poll = select.poll()  # Connection.poll() builds a selector at each call: the loop asks at every step
        self._poll.register(reader, select.POLLIN)

    def get(self) -> Turn:
        """Blocks for the next turn. EOFError or OSError: the parent is gone."""
        turn: Turn = decode(self._reader.recv_bytes())
        return turn

    def empty(self) -> bool:
        """False at the end of the pipe as well: `get` says so."""
        return not self._poll.poll(0)


class Outbox:
    """Messages to the parent: reports of the loop, beats, log records of whatever thread."""

    def __init__(self, writer: Connection) -> None:
        self._writer = writer
        self._writing = threading.Lock()

    def put(self, message: StepReport | LogLine | Beat | ProcessFailed) -> None:
        """Blocks while the pipe (64 KiB) is full. OSError: the parent is gone."""
        data = encode(message)
        with self._writing:
            self._writer.send_bytes(data)
