"""The first signal, the second, and a section that none may interrupt."""

import atexit
import signal
import threading
from collections.abc import Iterator

import pytest

from omni_cli.launch import signals
from omni_cli.launch.signals import SIGNALS, Interrupted, Interrupts, deferred


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    saved = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:  # a job in the background or under nohup has some of them ignored
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in saved.items():
        signal.signal(number, handler)
    atexit.unregister(signals._ignore)


class Stages:
    def __init__(self) -> None:
        self.killed = 0
        self.abandoned = threading.Event()

    def kill(self) -> None:
        self.killed += 1

    def abandon(self) -> None:
        self.abandoned.set()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_raises_with_the_exit_code(number: signal.Signals, code: int) -> None:
    with Interrupts() as interrupts:
        assert interrupts.exit_code is None
        with pytest.raises(Interrupted) as caught:
            signal.raise_signal(number)
    assert caught.value.code == interrupts.exit_code == code
    assert caught.value.signal == number


def test_the_first_signal_calls_the_handler_that_was_given() -> None:
    calls: list[int] = []
    with Interrupts() as interrupts, interrupts.handled_by(lambda: calls.append(1)):
        signal.raise_signal(signal.SIGTERM)
        assert calls == [1]
        assert interrupts.exit_code == 143
        with pytest.raises(Interrupted):
            interrupts.check()


def test_without_a_signal_there_is_nothing_to_raise() -> None:
    with Interrupts() as interrupts:
        interrupts.check()


def test_every_further_signal_kills_and_the_process_is_ended_if_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    ended = threading.Event()

    def leave(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(signals, "FORCED_END_S", 0.0)
    monkeypatch.setattr("os._exit", leave)
    stages = Stages()
    with Interrupts() as interrupts, interrupts.handled_by(lambda: None):
        interrupts.register(stages)
        signal.raise_signal(signal.SIGTERM)
        assert stages.killed == 0
        signal.raise_signal(signal.SIGINT)
        assert stages.killed == 1
        assert ended.wait(10)
    assert stages.abandoned.is_set()
    assert codes == [143]


def test_handlers_are_as_before_if_no_signal_came() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupts():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts(), deferred():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_deferred_signal_hurries_and_is_delivered_at_the_end() -> None:
    done: list[str] = []

    def work() -> None:
        with deferred(lambda: done.append("hurry")):
            signal.raise_signal(signal.SIGINT)
            done.append("end")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["hurry", "end"]


def test_outside_the_main_thread_nothing_is_deferred() -> None:
    inside: list[object] = []

    def work() -> None:
        with deferred():
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [signal.getsignal(signal.SIGINT)]
