"""The environment in which a stage process starts. It is complete before the interpreter runs its first line.

The parent's own environment is as before once the process has started.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import resource_tracker

from stages.config import StageSpec

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the older name and the one that replaces it
_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_MAIN = ("__file__", "__spec__")  # by which spawn finds the main module
_HELD_BACK = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def stage_environment(spec: StageSpec, environment: Mapping[str, str]) -> tuple[dict[str, str | None], tuple[str, ...]]:
    """What differs from `environment` in the stage's process (None: unset), and a note on each setting taken away.

    A stage on the CPU sees no GPU. No stage goes to the network for a model. Memory of `expandable_segments` cannot
    be shared between processes reliably (pytorch#179220), so that setting of the allocator is removed.
    """
    changes: dict[str, str | None] = {name: str(spec.threads) for name in _THREADS}
    changes |= {
        "CUDA_VISIBLE_DEVICES": ",".join(spec.devices),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order in which NVML, hence the plan, numbers them
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    notes = []
    for name in _ALLOCATOR:
        if (found := environment.get(name)) is None:
            continue
        settings = _OUTSIDE_BRACKETS.split(found)
        kept = [setting for setting in settings if not _expandable(setting)]
        if len(kept) < len(settings):
            changes[name] = ",".join(kept) or None
            notes.append(f"expandable_segments is removed from {name}: such memory cannot be shared between processes")
    return changes, tuple(notes)


def _expandable(setting: str) -> bool:
    key, _, value = setting.partition(":")
    return key.strip() == "expandable_segments" and value.strip().lower() != "false"


@contextmanager
def starting(changes: Mapping[str, str | None]) -> Iterator[None]:
    """While a process is started: it inherits `changes`, has SIGINT, SIGTERM and SIGHUP blocked, and no main module.

    Blocked, because a Ctrl-C would otherwise hit it in the middle of its imports. No main module, because spawn would
    run the parent's once more in it: the console script, or the test runner.
    """
    resource_tracker.ensure_running()  # starting it unblocks SIGINT and SIGTERM, so it comes first
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    saved = {name: os.environ.get(name) for name in changes}
    main = sys.modules["__main__"]
    hidden: dict[str, object] = {name: vars(main).pop(name) for name in _MAIN if name in vars(main)}
    main.__spec__ = None  # multiprocessing reads it unconditionally
    try:
        _set(changes)
        yield
    finally:
        _set(saved)
        del main.__spec__
        vars(main).update(hidden)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _set(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
