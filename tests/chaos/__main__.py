"""`python -m tests.chaos --rounds 5000`: rounds of chaos, and the command that repeats the one that failed."""

import argparse
import logging
import sys
import time

from tests.chaos.rounds import drive


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--bounded", action="store_true", help="one kill of a stage that holds a model in all")
    parser.add_argument("--ground", help="all rounds on this deployment, over one start")
    parser.add_argument("--minutes", type=float, help="begin no launch after so long")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # stages die by the hundred
    due_s = None if given.minutes is None else time.monotonic() + 60 * given.minutes
    how = {"full": not given.bounded, "ground": given.ground, "due_s": due_s, "tell": print}
    tally = drive(given.seed, given.first, given.rounds, **how)
    for (what, phase), count in sorted(tally.acts.items()):
        print(f"{what:7} {phase:25} {count}")
    print(f"{tally.rounds} rounds, no violation; requests: {dict(sorted(tally.ends.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
