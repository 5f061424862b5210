"""SIGINT, SIGTERM and SIGHUP: one orderly end at the first, an immediate one at the second.

Commands enter `Interrupts` once, around everything they do. The launcher shields its own critical sections with
`deferred`, whoever installed the handlers.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

FORCED_END_S = 3.0  # after a second signal: the process is gone by then, whatever it hangs in

Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


class Interrupted(SystemExit):
    """Raised in the main thread by the first signal. Uncaught, it ends the process with 128 + signal, silently."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


class Killable(Protocol):
    """What a second signal ends. Both are called in a signal handler or a thread: no lock, no waiting."""

    def kill(self) -> None: ...

    def abandon(self) -> None: ...


class Interrupts:
    """Handlers for the time of a command. The first signal raises `Interrupted`, or calls what `handled_by` was given.

    Every further signal kills what was registered, so that everything that waits for it comes to its end. If the
    command hangs all the same, what was registered is abandoned and this process ended after `FORCED_END_S`.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._callback: Callable[[], object] | None = None
        self._killable: list[Killable] = []
        self._saved: dict[signal.Signals, Handler] = {}

    @property
    def exit_code(self) -> int | None:
        """130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP; None while no signal has come."""
        return None if self._first is None else 128 + self._first

    def __enter__(self) -> "Interrupts":
        self._saved = _install(self._take)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._first is None:
            _restore(self._saved)
        # else the process is on its way out: further signals stay ours to the end

    @contextmanager
    def handled_by(self, callback: Callable[[], object]) -> Iterator[None]:
        """Inside, the first signal calls `callback` (in the main thread, between two bytecodes) and raises nothing."""
        saved, self._callback = self._callback, callback
        try:
            yield
        finally:
            self._callback = saved

    def check(self) -> None:
        """Raises `Interrupted` if a signal has come: for what was told of it by `handled_by` and has ended its work."""
        if self._first is not None:
            raise Interrupted(self._first)

    def register(self, stages: Killable) -> None:
        """From here on every signal after the first kills `stages`: while they are stopped, too, and after it."""
        self._killable.append(stages)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._first is None:
            self._first = number
            atexit.register(_ignore)  # while the interpreter takes itself down, a signal would change the exit code
            if self._callback is None:
                raise Interrupted(number)
            self._callback()
            return
        for stages in self._killable:
            stages.kill()
        watchdog = threading.Timer(FORCED_END_S, self._end)
        watchdog.daemon = True
        watchdog.start()

    def _end(self) -> None:
        for stages in self._killable:
            stages.abandon()
        os._exit(self.exit_code or 1)


@contextmanager
def deferred(hurry: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Inside, a signal calls `hurry` in place of its handler; at the end it is delivered to its handler.

    Outside the main thread this does nothing: there no signal handler can interrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        hurry()

    saved = _install(note)
    try:
        yield
    finally:
        _restore(saved)
        for number in dict.fromkeys(caught):
            signal.raise_signal(number)


def _ignore() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _install(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Handler]:
    """Sets the handler of each signal that is not ignored (nohup, a background job); returns what was set before."""
    saved: dict[signal.Signals, Handler] = {}
    for number in SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            saved[number] = signal.signal(number, handler)
    return saved


def _restore(saved: dict[signal.Signals, Handler]) -> None:
    for number, handler in saved.items():
        signal.signal(number, handler)
