"""Writes every event to the run's `trace.jsonl` as it happens: a listener that encodes, and a thread that writes.

When the process is killed, the trace lacks the events of the last `window_s` (those of `URGENT` kinds are written at
once, with all before them) and its last line may be torn. A full disk ends the recording with one report; nothing that
happens here can break a run or hold it up.
"""

import fcntl
import logging
import os
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

from omni_cli.errors import TraceError
from omni_cli.runtime.events import Event, ProcessDead, RequestFailed, RunFinished, RunStarted
from omni_cli.trace.codec import encode
from stages.events import StageFailed

log = logging.getLogger(__name__)

# What explains a failure must be on disk before anything else can go wrong.
URGENT = frozenset({RunStarted, StageFailed, RequestFailed, ProcessDead, RunFinished})


class Recorder:
    """The trace's listener for one run. Events are written in the order of the calls and numbered from 0.

    `events` counts those heard so far, which is what `RunFinished` has to say. `problem` tells why the recording ended
    early, if it did. Raises TraceError if `path` exists already or cannot be created.
    """

    def __init__(self, path: Path, *, window_s: float = 0.05) -> None:
        self.path = path
        self.events = 0
        self.problem: str | None = None
        self._window_s = window_s
        self._lines: deque[str] = deque()
        self._written = 0
        self._closing = False
        self._torn = False  # a write has failed, of the writer alone
        self._awake = False  # the writer has been woken and has not yet looked at the queue
        self._wake = threading.Event()
        self._hurry = threading.Event()
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            raise TraceError(f"{path}: exists already; a trace is written once, into its run's own folder") from None
        except OSError as error:
            raise TraceError(f"{path}: the trace cannot be created: {error.strerror}") from error
        with suppress(OSError):  # a file system without locks; released by the kernel, whatever ends the process
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._thread = threading.Thread(target=self._run, name="omni:trace", daemon=True)
        self._thread.start()

    def hear(self, source: str, event: Event) -> None:
        """Encodes the event and queues its line. Called by one thread at a time, as every listener: without a lock.

        Here, where it is at hand: a moment later, in the writer's thread, it would take twice as long, the event loop
        would wait for the interpreter meanwhile, and every payload in it would have been kept until then.
        """
        if self.problem is None:
            try:
                self._lines.append(encode(source, self.events, event))
            except Exception as error:  # a defect of the codec must cost the trace, never the run
                self._give_up(f"{type(error).__name__}: {error} in event {self.events}, {type(event).__name__}")
        self.events += 1
        if type(event) in URGENT:
            self._hurry.set()
        if not self._awake:
            self._awake = True
            self._wake.set()

    def close(self) -> None:
        """Returns when every event is written, or given up with a report. May be called again."""
        self._closing = True
        self._hurry.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._hurry.wait(self._window_s)
            # Cleared before the queue is emptied: whatever is queued from now on wakes the thread again.
            self._wake.clear()
            self._hurry.clear()
            self._awake = False
            self._write()
        self._write()
        os.close(self._file)
        if self.problem is not None:
            log.error("%s: %d of %d events were not recorded", self.path, self.events - self._written, self.events)

    def _write(self) -> None:
        """Everything that has been queued until now. Gives up at the first error."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if self._torn:  # nothing may follow a gap
            return
        rest = memoryview("".join(lines).encode("ascii"))
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            self._written += len(lines)
        except OSError as error:
            self._torn = True
            self._give_up(f"{error.strerror} after event {self._written}; free space there for the next run")

    def _give_up(self, why: str) -> None:
        if self.problem is None:
            self.problem = f"{self.path}: the recording ended: {why}"
            log.error("%s", self.problem)
