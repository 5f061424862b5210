"""Who hangs: a process that is stopped, one that is silent, and one that beats and does not come back from a step."""

import re
from dataclasses import dataclass, field

import pytest

from omni_cli.runtime.heartbeat import HeartbeatWatch
from stages.messages import Beat

LIMIT_S = 8.0  # a beat a second


@dataclass(eq=False)
class Handle:
    """A process with a life by script: what it says in each second."""

    process: str = "talker.0"
    beat: Beat | None = None
    stopped: bool = False
    condemned: list[str] = field(default_factory=list)

    def condemn(self, why: str) -> None:
        self.condemned.append(why)


def watched(seconds: int, life, *, gap_at: int = -1, stopped: bool = False) -> tuple[Handle, int | None]:
    """The handle after that many looks, one a second, and the second at which it was condemned."""
    now, handle, when = [0.0], Handle(stopped=stopped), None
    watch = HeartbeatWatch(LIMIT_S, clock=lambda: now[0])
    for second in range(seconds):
        now[0] += 1000.0 if second == gap_at else 1.0
        handle.beat = life(second, handle.beat)
        watch.look([handle])
        if handle.condemned and when is None:
            when = second
    return handle, when


def works(second, beat):
    return Beat(rounds=second, working=True)


def idles(second, beat):
    return Beat(rounds=7, working=False)


def hangs_at_5(second, beat):
    return Beat(rounds=min(second, 5), working=True)


def hangs_at_5_on_a_busy_machine(second, beat):
    return beat if second % 2 else hangs_at_5(second, beat)


def idles_until_5_and_hangs(second, beat):
    return Beat(rounds=7, working=second > 5)


def silent_at_5(second, beat):
    return Beat(rounds=second, working=True) if second < 5 else beat


@pytest.mark.parametrize("life", [works, idles])
def test_who_works_or_waits_lives_on(life):
    assert watched(100, life)[1] is None


@pytest.mark.parametrize(
    ("life", "since", "stopped", "said"),
    [
        (hangs_at_5, 5, False, "it runs, but has not come back from a step"),
        (hangs_at_5_on_a_busy_machine, 5, False, "it runs, but has not come back from a step"),
        (idles_until_5_and_hangs, 6, False, "it runs, but has not come back from a step"),
        (silent_at_5, 4, True, r"is stopped \(SIGSTOP\) and has given no sign of life"),
        (silent_at_5, 4, False, "no sign of life"),
        (lambda second, beat: None, 0, False, "no sign of life"),
    ],
    ids=["a step that never returns", "one whose beats are late", "the first one", "stopped", "silent", "never a beat"],
)
def test_who_hangs_is_killed_once_within_the_limit_and_not_long_before(life, since, stopped, said):
    handle, second = watched(40, life, stopped=stopped)
    assert since + 0.75 * LIMIT_S <= second <= since + LIMIT_S
    (why,) = handle.condemned
    assert re.search(rf"{said} for 6 s, of at most 8 \(deploy.heartbeat_s\)", why)


def test_a_time_in_which_nobody_ran_counts_for_nothing():
    """This process was stopped, or the machine: the looks after it find old beats at first."""
    assert watched(12, lambda second, beat: beat if second == 6 else works(second, beat), gap_at=6)[1] is None
