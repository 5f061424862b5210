"""One worker's two threads in the parent: the event loop never touches a queue itself, since a pipe can block."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from omni_cli.runtime.processes import StageHandle
from omni_cli.runtime.stage_log import log_line
from stages.events import StepReport
from stages.messages import Beat, LogLine, ProcessFailed, Turn

Received = StepReport | ProcessFailed | None  # None: the process is dead


class StageClient:
    """Sends turns to and receives reports from one replica. What waits to be sent is bounded by admission.

    `on_receive(client, message)` is called in the reader thread; the last call has None.
    """

    def __init__(self, handle: StageHandle, on_receive: Callable[["StageClient", Received], None]) -> None:
        self.handle = handle
        self.process = handle.process
        self._on_receive = on_receive
        self._outbox: SimpleQueue[Turn | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, name=f"read {self.process}", daemon=True)
        self._writer = threading.Thread(target=self._write, name=f"write {self.process}", daemon=True)

    def start(self) -> None:
        self._reader.start()
        self._writer.start()

    def send(self, turn: Turn) -> None:
        """Never blocks. To a dead process nothing is sent; its death is reported by the reader."""
        self._outbox.put(turn)

    def close(self) -> None:
        """Ends the writer, after what is queued. The reader ends with the process."""
        self._outbox.put(None)

    def join_writer(self, timeout_s: float) -> bool:
        """Waits for the end of the writer; False if the process does not read what is left."""
        self._writer.join(timeout_s)
        return not self._writer.is_alive()

    def _read(self) -> None:
        while True:
            try:
                message: Received | LogLine | Beat = self.handle.receive()
            except (EOFError, OSError):
                message = None
            if isinstance(message, LogLine):
                log_line(message)  # here, not in the loop, which may have ended before the process has
                continue
            if isinstance(message, Beat):
                continue  # the handle keeps it
            if message is None:
                self.handle.reap()  # here, too: the loop shall not wait for a process to be gone
            self._on_receive(self, message)
            if message is None:
                self._outbox.put(None)
                return

    def _write(self) -> None:
        while (turn := self._outbox.get()) is not None:
            try:
                self.handle.send(turn)
            except OSError:
                return
