"""A stage that does as it is told, and the plans and specs to launch it with. Imported in the stage processes, too."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Literal

from stages.config import EdgeSpec, ModelSpec, RingSpec, StageSpec
from stages.connectors.registry import open_writer
from stages.events import ProcessReady, StageCancelled, StepReport
from stages.messages import REQUEST, Cancel, LogLine, Stop
from stages.payload import Payload, Tensor
from stages.worker.channel import Inbox, Outbox

ECHO, LOG, PUT_AND_KEEP, FLOOD, DEAF = range(5)  # what `Cancel(uid=...)` makes the stage do


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How the stage starts and stops. `gate` is a FIFO on which `wait` blocks until somebody opens it for writing."""

    load: Literal["ready", "raise", "exit", "abort", "hang", "wait"] = "ready"
    stop: Literal["exit", "ignore", "ignore terminate"] = "exit"
    gate: str = ""


def run_fake(spec: StageSpec, inbox: Inbox, outbox: Outbox) -> None:
    behaviour = spec.options
    assert isinstance(behaviour, Behaviour)
    if behaviour.stop == "ignore terminate":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _load(behaviour)
    outbox.put(LogLine(process=spec.process, level=20, logger="fake", text=f"loaded {spec.stage}"))
    facts = (
        ("modules", " ".join(sys.modules)),
        *((name, value) for name, value in os.environ.items()),
        ("comm", Path("/proc/self/comm").read_text().strip()),
    )
    ready = ProcessReady(t_ns=time.monotonic_ns(), pid=os.getpid(), facts=facts)
    outbox.put(StepReport(process=spec.process, seq=0, events=(ready,)))
    for seq in count(1):
        for command in inbox.get().commands:
            if isinstance(command, Stop) and behaviour.stop == "exit":
                return
            if isinstance(command, Cancel):
                _obey(spec, command.uid, outbox, seq)


def _load(behaviour: Behaviour) -> None:
    if behaviour.load == "raise":
        raise RuntimeError("the weights are made of cheese")
    if behaviour.load == "exit":
        os._exit(3)
    if behaviour.load == "abort":
        os.abort()
    if behaviour.load == "hang":
        signal.pause()
    if behaviour.load == "wait":
        with open(behaviour.gate) as gate:
            gate.read()


def _obey(spec: StageSpec, uid: int, outbox: Outbox, seq: int) -> None:
    if uid == LOG:
        outbox.put(LogLine(process=spec.process, level=20, logger="fake", text="asked to log"))
    elif uid == PUT_AND_KEEP:
        writer = open_writer(spec.consumers[0], spec.process, count())
        assert writer.put((Payload(tensors=(Tensor(name="a", dtype="uint8", shape=(3,), data=memoryview(b"abc")),)),))
    elif uid == FLOOD:
        outbox.put(LogLine(process=spec.process, level=20, logger="fake", text="x" * 1_000_000))
    elif uid == DEAF:
        signal.pause()
    answer = StageCancelled(uid=uid, t_ns=time.monotonic_ns())
    outbox.put(StepReport(process=spec.process, seq=seq, events=(answer,)))


STAGES = ("thinker", "talker", "code2wav")


def ring(run_id: str, owner: str, reader: str, data_bytes: int) -> RingSpec:
    key = f"deploy.stages.{reader}.inputs.{owner}.ring_bytes"
    return RingSpec(segment=f"omni-{run_id}-{owner}-{reader}", slots=2, data_bytes=data_bytes, key=key)


def fake_specs(
    run_id: str,
    behaviours: dict[str, Behaviour] | None = None,
    *,
    stages: Sequence[str] = STAGES,
    devices: tuple[str, ...] = (),
    data_bytes: int = 1 << 16,
) -> tuple[StageSpec, ...]:
    """A chain with a ring between any two neighbours, one into the first stage and one out of the last."""
    names = (REQUEST, *stages, REQUEST)
    edges = [
        EdgeSpec(
            producer=producer,
            consumer=consumer,
            mode="complete",
            connector="shm",
            rings=(ring(run_id, producer, consumer, data_bytes),),
        )
        for producer, consumer in pairwise(names)
    ]
    return tuple(
        StageSpec(
            run_id=run_id,
            family="fake",
            stage=stage,
            replica=0,
            generation=0,
            execution_type="llm_ar",
            model=ModelSpec(path="", load_format="dummy", dtype="float32"),
            devices=devices,
            max_batch=1,
            memory_fraction=0.5,
            threads=1,
            inputs=(edges[index],),
            consumers=(edges[index + 1],),
            outputs=(),
            options=(behaviours or {}).get(stage, Behaviour()),
        )
        for index, stage in enumerate(stages)
    )
