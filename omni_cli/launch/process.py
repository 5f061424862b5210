"""One stage process as the parent sees it: two one-way pipes, a sentinel, a name. It decides nothing by itself."""

import contextlib
import multiprocessing
import os
import select
import signal
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from omni_cli.launch.environment import starting
from stages.config import StageSpec
from stages.events import StepReport
from stages.messages import Beat, LogLine, ProcessFailed, Turn
from stages.wire import decode, encode
from stages.worker.bootstrap import RunStage, run_stage_process

_SIGNALS = frozenset(signal.Signals)

REAP_S = 5.0  # between the end of a process's pipe and its exit status


class StageProcess:
    """A spawned replica, from its first moment to its reaping. Implements `StageHandle`.

    `send` may be called by one thread and `receive` by another while a third asks whether it lives.
    """

    def __init__(self, spec: StageSpec, process: SpawnProcess, reader: Connection, writer: Connection) -> None:
        self.spec = spec
        self.stage, self.process, self.generation = spec.stage, spec.process, spec.generation
        self.written = {edge.consumer: ring for edge in spec.consumers for ring in edge.rings}
        self._process = process
        self.reader = reader  # readable when `receive` will not block: for waiting on several processes at once
        self.sentinel = process.sentinel
        self._writer = writer
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        self._reaping = threading.Lock()
        self._closed = False
        self._exit_code: int | None = None
        self._reaped = False
        self.told = False  # somebody has taken it on to report the death
        self.failure: ProcessFailed | None = None  # it has said that it gives up
        self.given_up = False  # it does not answer
        self.beat: Beat | None = None  # the last one
        self._sentence = ""  # why it was killed
        self._poll = select.poll()
        self._poll.register(reader, select.POLLIN)
        self._poll.register(process.sentinel, select.POLLIN)

    @classmethod
    def spawn(
        cls, spec: StageSpec, environment: Mapping[str, str | None], run_stage: RunStage | None = None
    ) -> "StageProcess":
        """Starts the process and returns at once. The calling thread must live as long as the process shall:

        the kernel's parent-death signal is bound to the thread that spawned, not to the parent.
        """
        context = multiprocessing.get_context("spawn")
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            their_reader, our_writer = context.Pipe(duplex=False)
            theirs.enter_context(their_reader)
            ours.enter_context(our_writer)
            our_reader, their_writer = context.Pipe(duplex=False)
            theirs.enter_context(their_writer)
            ours.enter_context(our_reader)
            process = context.Process(
                target=run_stage_process,
                args=(spec, their_reader, their_writer, os.getpid(), run_stage),
                name=f"omni:{spec.process}",
                daemon=True,
            )
            with starting(environment):
                process.start()
            # Their ends are closed here on leaving, or a dead process would never read as the end of its pipe.
            ours.pop_all()
        return cls(spec, process, our_reader, our_writer)

    @property
    def pid(self) -> int:
        pid = self._process.pid
        if pid is None:
            raise RuntimeError(f"{self.process} has no pid before it is started")
        return pid

    def send(self, turn: Turn) -> None:
        data = encode(turn)
        with self._sending:
            if self._closed:
                raise BrokenPipeError(f"{self.process} is stopped")
            self._writer.send_bytes(data)

    def receive(self) -> StepReport | LogLine | Beat | ProcessFailed:
        with self._receiving:
            if self._closed:
                raise EOFError(f"{self.process} is stopped")
            ready = {number for number, _ in self._poll.poll()}
            if self.reader.fileno() not in ready and not self.reader.poll():
                # Only the sentinel: dead, all read, and some descendant still holds the pipe open.
                raise EOFError(f"{self.process} has died")
            message: StepReport | LogLine | Beat | ProcessFailed = decode(self.reader.recv_bytes())
            if isinstance(message, ProcessFailed):
                self.failure = message
            elif isinstance(message, Beat):
                self.beat = message
            return message

    def join(self, timeout_s: float) -> bool:
        """Waits for the end of the process and reaps it; False if it still runs."""
        with self._reaping:
            if self._exit_code is None and not self._closed:
                self._process.join(timeout_s)
                self._exit_code = self._process.exitcode
            return self._exit_code is not None

    def reap(self) -> None:
        self.join(REAP_S)
        self._reaped = True

    def death(self) -> str:
        """Whoever asks has taken it on to report the death (`told`): the launcher then does not report it again."""
        self.told = True
        return self.ending()

    def give_up(self) -> None:
        self.given_up = True

    def ending(self) -> str:
        """How it died, for a person; what it said itself comes first, or why it was killed."""
        if self.failure is None:
            return f"{self._sentence} ({self._exit()})" if self._sentence else self._exit()
        return f"{self.failure.error.kind}: {self.failure.error.message} ({self._exit()})"

    def _exit(self) -> str:
        if not self.join(0 if self._reaped else REAP_S) or self._exit_code is None:
            return "closed its pipe but is still running"
        if self._exit_code >= 0:
            return f"exit code {self._exit_code}"
        number = -self._exit_code
        return f"killed by {signal.Signals(number).name if number in _SIGNALS else f'signal {number}'}"

    @property
    def stopped(self) -> bool:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False  # it is gone
        return stat.rpartition(") ")[2][:1] in "Tt"

    def condemn(self, why: str) -> None:
        self._sentence = why
        self.kill()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process and what it has started. Takes no lock and does not wait."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._closed or self._process.exitcode is not None:
            return  # reaped: its number may be somebody else's by now
        for deliver in (os.kill, os.killpg):  # its group is its own as soon as it has left ours
            with contextlib.suppress(ProcessLookupError):
                deliver(self.pid, number)

    def close(self) -> None:
        """Gives back the pipes and the sentinel of a process that has been joined. May be called twice."""
        if not self._receiving.acquire(timeout=REAP_S):
            return  # a descendant of it keeps the pipe, and somebody is still reading: not to be closed under them
        try:
            if not self._closed:
                self._closed = True
                self._writer.close()
                self.reader.close()
                self._process.close()
        finally:
            self._receiving.release()
