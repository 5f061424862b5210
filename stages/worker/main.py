"""What a stage process does, from its spec to its end: attach, load, warm up, say so, work until told to stop.

Name, signals and the tie to the parent's life are `bootstrap`'s, which also reports what is raised here.
"""

import gc
import itertools
import logging
import os
import time

from stages.config import StageSpec
from stages.connectors.registry import open_reader, open_writer
from stages.lease import first_number
from stages.models.registry import build_runner, contract
from stages.runners.base import Denoiser, ModelRunner
from stages.schedulers.base import KVCapacity, Scheduler
from stages.schedulers.registry import create_scheduler
from stages.worker.channel import Inbox, Outbox
from stages.worker.heartbeat import start_heartbeat
from stages.worker.logs import forward_logs
from stages.worker.loop import ParentGone, StageWorker

log = logging.getLogger("omni.worker")

_GROWTH = 20_000  # objects more than at the last search for reference cycles, before the next one: messages have none


def run_stage(spec: StageSpec, inbox: Inbox, outbox: Outbox) -> None:
    """Returns after `Stop`, or when the parent is gone. Whatever loading raises, this raises."""
    forward_logs(spec.process, logging.INFO, outbox)
    numbers = itertools.count(first_number(spec.generation))
    readers = {edge.producer: open_reader(edge) for edge in spec.inputs}
    writers = {edge.consumer: open_writer(edge, spec.process, numbers) for edge in spec.consumers}
    start = time.monotonic_ns()
    runner = build_runner(spec)
    facts = runner.load()
    loaded = time.monotonic_ns()
    runner.warm_up()
    gc.freeze()  # weights and modules stay: the search for reference cycles need not walk through them again and again
    gc.set_threshold(_GROWTH, *gc.get_threshold()[1:])
    ready = time.monotonic_ns()
    seconds = (("load_s", f"{(loaded - start) / 1e9:.3f}"), ("warm_up_s", f"{(ready - loaded) / 1e9:.3f}"))
    scheduler = _scheduler(spec, runner)
    known = (*facts, *_capacity(spec, runner.kv_capacity()), *seconds)
    log.info("loaded: %s", ", ".join(f"{name} {value}" for name, value in known))
    worker = StageWorker(spec, runner, scheduler, readers, writers, time.monotonic_ns)
    worker.ready(os.getpid(), known)
    if spec.beat_s is not None:
        start_heartbeat(worker, spec.beat_s, outbox)
    try:
        worker.run(inbox, outbox)
    except ParentGone:
        return  # nobody is left to be told
    finally:
        runner.close()
        for reader in readers.values():
            reader.close()
        for writer in writers.values():
            writer.close()


def _scheduler(spec: StageSpec, runner: ModelRunner) -> Scheduler:
    stage = contract(spec.family).stages[spec.stage]
    return create_scheduler(
        spec.execution_type,
        spec.max_batch,
        stage.max_units_a_row,
        tuning=spec.tuning,
        kv=runner.kv_capacity(),
        stage=spec.stage,
        lookahead={producer: found.lookahead_units for producer, found in stage.inputs.items()},
        denoising=runner.denoising if isinstance(runner, Denoiser) else None,
        encodes=stage.encodes,
        decodes=stage.decodes,
    )


def _capacity(spec: StageSpec, kv: KVCapacity | None) -> tuple[tuple[str, str], ...]:
    """What bounds a step, for the trace."""
    facts = [("max_batch", str(spec.max_batch))]
    if kv is not None:
        facts += [("kv_blocks", str(kv.blocks)), ("kv_block_tokens", str(kv.block_tokens))]
        if spec.tuning.step_tokens is not None:
            facts.append(("step_tokens", str(spec.tuning.step_tokens)))
    return tuple(facts)
