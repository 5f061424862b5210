"""Which rounds run on which deployment, over how many starts; and what is said of one that fails."""

import time
from collections.abc import Callable, Iterator, Sequence

from tests.chaos.drive import Launch, Tally, Violation
from tests.chaos.ground import LIGHT, MODEL, Ground

BLOCK = 50  # rounds of one start


def drive(
    seed: int,
    first: int,
    rounds: int,
    *,
    full: bool = True,
    ground: str | None = None,
    due_s: float | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Tally:
    """Rounds `first` to `first + rounds`: one in ten kills a stage that holds a model; unless `full`, the last ten run
    on such stages, and one of them kills. Raises Violation, with the command that repeats it."""
    tally, start_s = Tally(), time.monotonic()
    for where, numbers in _launches(first, first + rounds, full, ground):
        if due_s is not None and time.monotonic() > due_s:
            tell("no time is left")
            break
        launch = Launch(where, seed, tally, deadly=1 if where.torch and full else 10)
        try:
            launch.run(numbers)
        except Exception as error:
            again = f"--ground {where.name} --seed {seed} --first {numbers[0]} --rounds {len(numbers)}"
            why = f"{where.name}, round {launch.number} of seed {seed}: {error or type(error).__name__}"
            again += "" if full else " --bounded"
            raise Violation(f"{why}\nagain: python -m tests.chaos {again}") from error
        tell(f"{tally.rounds} rounds, {time.monotonic() - start_s:.0f} s: {where.name} {numbers[0]} to {numbers[-1]}")
    return tally


def _launches(first: int, end: int, full: bool, ground: str | None) -> Iterator[tuple[Ground, Sequence[int]]]:
    if ground is not None:
        yield next(where for where in (*LIGHT, MODEL) if where.name == ground), range(first, end)
        return
    for start in range(first, end, BLOCK):
        block = range(start, min(start + BLOCK, end))
        on_models = 5 if full else 10 if block.stop == end else 0
        light = block[: len(block) - on_models]
        for where, numbers in ((LIGHT[start // BLOCK % len(LIGHT)], light), (MODEL, block[len(light) :])):
            if numbers:
                yield where, numbers
