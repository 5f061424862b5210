"""What goes wrong on purpose in a synthetic stage, and how long things take there."""

import os
from collections.abc import Callable, Iterable

from stages.models.synthetic.options import AT_LOAD, FailKind, SyntheticOptions

EXIT_CODE = 3
NEVER_ENDING_FRAME_S = 0.01
_LONG_S = 3600.0


class Faults:
    """One stage's share of the knobs. Counts how often it has failed in this process."""

    def __init__(self, stage: str, sleep: Callable[[float], None]) -> None:
        self._stage = stage
        self._sleep = sleep
        self._failed = 0

    def load(self, options: SyntheticOptions) -> None:
        """Takes the time of loading, then fails if that is asked for."""
        self._sleep(getattr(options.init_delay_s, self._stage))
        self._fail_between(options, AT_LOAD, AT_LOAD + 1, "while it loads")

    def step(self, options: Iterable[SyntheticOptions]) -> None:
        """Takes the time of a step: the longest of the rows' delays."""
        delay_ms = max(getattr(each.delay_ms, self._stage) for each in options)
        if delay_ms:
            self._sleep(delay_ms / 1000)

    def units(self, options: SyntheticOptions, position: int, units: int) -> None:
        """Fails if one of these units is where it shall fail."""
        if options.fail.stage == self._stage:
            self._fail_between(options, position, position + units, f"at unit {options.fail.at}")

    def _fail_between(self, options: SyntheticOptions, first: int, end: int, where: str) -> None:
        fail = options.fail
        if fail.stage != self._stage or not first <= fail.at < end:
            return
        if fail.times is not None and self._failed >= fail.times:
            return
        self._failed += 1
        self._do(fail.kind, where)

    def _do(self, kind: FailKind, where: str) -> None:
        if kind == "raise":
            raise RuntimeError(f"stage {self._stage!r} raises on purpose {where}")
        if kind == "oom":
            raise MemoryError(f"stage {self._stage!r} runs out of memory on purpose {where}")
        if kind == "exit":
            os._exit(EXIT_CODE)
        while True:
            self._sleep(_LONG_S)
