"""The signs of life of a stage process, from a thread of its own: it beats on while the loop is in a step.

A process that is stopped has no thread that runs; one whose step never returns beats, and says that nothing gets done.
What to make of it is the parent's business.
"""

import threading

from stages.messages import Beat
from stages.worker.channel import Outbox
from stages.worker.loop import StageWorker


def start_heartbeat(worker: StageWorker, every_s: float, outbox: Outbox) -> None:
    """Ends with the process, or with the parent."""
    threading.Thread(target=_beat, args=(worker, every_s, outbox), name="omni:heartbeat", daemon=True).start()


def _beat(worker: StageWorker, every_s: float, outbox: Outbox) -> None:
    rest = threading.Event()
    try:
        while not rest.wait(every_s):
            outbox.put(Beat(rounds=worker.rounds, working=worker.working))
    except OSError:
        return  # the parent is gone: the loop finds out for itself
