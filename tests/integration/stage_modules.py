"""A stage process that says at its end what it has imported. A module of its own: it is imported in that process."""

import os
import sys

from stages.events import ProcessReady, StepReport
from stages.worker.bootstrap import run_stage_process
from stages.worker.channel import Outbox


def run_and_list_modules(spec, inbox, outbox, parent_pid):
    """Target of the process: the stage, then one more report with the names of all modules."""
    run_stage_process(spec, inbox, outbox, parent_pid)
    facts = (("modules", " ".join(sys.modules)),)
    ready = ProcessReady(t_ns=0, pid=os.getpid(), facts=facts)
    Outbox(outbox).put(StepReport(process=spec.process, seq=9, events=(ready,)))
