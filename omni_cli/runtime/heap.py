"""Spares the search for reference cycles what it can never find any in.

Messages and events have no cycles: they are freed when the last reference goes. But the search runs whenever many of
them are alive, as they are while the trace waits to be written, and each full one walks through every module that was
ever imported. Measured under load, that was half of what the trace cost.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

GROWTH = 20_000  # objects more than at the last search, before the next one


@contextmanager
def settled_heap() -> Iterator[None]:
    """Inside, what is there already is not searched, and the rest when it has grown by `GROWTH` objects."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(GROWTH, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
