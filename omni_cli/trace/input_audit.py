"""Audits each stage's input contract: ready as soon as the input is enough and not before, never ahead of it."""

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from omni_cli.runtime.events import MediaPut, RunStarted, StageSubmitted
from omni_cli.trace.audit import Audit
from omni_cli.trace.codec import TraceEvent
from stages.events import InputReady, LeaseReleased, MessageGot, MessagePut, StageFailed, StepDone
from stages.messages import REQUEST

_ALL = sys.maxsize


@dataclass(slots=True)
class _Stream:
    """What was put by sequence number, as (units, eos), and what the consumer has got of it."""

    put: dict[int, tuple[int, bool]] = field(default_factory=dict)
    units: int = 0
    ended: bool = False


@dataclass(slots=True)
class _Intake:
    """A request's input in one stage."""

    waits_for: tuple[str, ...]
    ready: bool = False


class InputAudit(Audit):
    """`complete` input holds a request back until its end, `incremental` input what lies beyond what has come."""

    def __init__(self) -> None:
        self._complete: set[tuple[str, str]] = set()
        self._lookahead: dict[tuple[str, str], int] = {}
        self._streams: dict[int, dict[tuple[str, str], _Stream]] = defaultdict(lambda: defaultdict(_Stream))
        self._intakes: dict[int, dict[str, _Intake]] = {}

    def see(self, line: TraceEvent) -> Iterator[str]:
        event, stage = line.event, line.source.rpartition(".")[0]
        if isinstance(event, RunStarted):
            self._complete = {(producer, consumer) for producer, consumer, mode in event.edges if mode == "complete"}
            self._lookahead = {(producer, consumer): units for producer, consumer, units in event.lookahead}
        elif isinstance(event, MessagePut):
            message = event.message
            stream = self._stream(event.uid, message.producer, message.consumer)
            stream.put.setdefault(message.seq, (message.units, message.eos))
        elif isinstance(event, MediaPut):
            self._stream(event.uid, REQUEST, event.consumer).put.setdefault(0, (1, True))
        elif isinstance(event, StageSubmitted):
            intakes = self._intakes.setdefault(event.uid, {})
            if event.stage in intakes:  # run again, with the same input
                for producer in event.waits_for:
                    stream = self._stream(event.uid, producer, event.stage)
                    stream.units, stream.ended = 0, False
            intakes[event.stage] = _Intake(waits_for=event.waits_for)
        elif isinstance(event, StepDone):
            for row in event.rows:
                if self._late(stage, row.uid):
                    yield f"request {row.uid} has enough input in {stage}, but was not ready"
                if row.position >= self._reach(row.uid, stage):
                    yield f"request {row.uid} ran in {stage} from {row.position}, ahead of its input"
        elif isinstance(event, InputReady):
            yield from self._ready(stage, event.uid)
        elif (
            stage
            and not isinstance(event, (LeaseReleased, StageFailed))
            and self._late(stage, uid := getattr(event, "uid", -1))
        ):
            yield f"request {uid} has enough input in {stage}, but was not ready"
        if isinstance(event, MessageGot):
            self._got(stage, event)

    def forget(self, uid: int) -> None:
        self._streams.pop(uid, None)
        self._intakes.pop(uid, None)

    def _stream(self, uid: int, producer: str, consumer: str) -> _Stream:
        return self._streams[uid][producer, consumer]

    def _got(self, stage: str, event: MessageGot) -> None:
        stream = self._stream(event.uid, event.producer, stage)
        units, eos = stream.put.get(event.seq, (0, False))
        stream.units += units
        stream.ended = stream.ended or eos

    def _reach(self, uid: int, stage: str) -> int:
        """Rows at positions below it may run."""
        intake = self._intakes.get(uid, {}).get(stage)
        reach = _ALL
        for producer in intake.waits_for if intake is not None else ():
            stream = self._stream(uid, producer, stage)
            if not stream.ended:
                reach = min(reach, self._streamed((producer, stage), stream.units))
        return reach

    def _streamed(self, edge: tuple[str, str], units: int) -> int:
        """How far a stream without its end lets rows run: the first needs one unit, others those ahead of them too."""
        return 0 if edge in self._complete else max(units - self._lookahead.get(edge, 0), min(units, 1))

    def _ready(self, stage: str, uid: int) -> Iterator[str]:
        if self._reach(uid, stage) <= 0:
            yield f"request {uid} is ready in {stage}, though its input is not enough"
        intake = self._intakes.get(uid, {}).get(stage)
        if intake is not None:
            intake.ready = True

    def _late(self, stage: str, uid: int) -> bool:
        """Who has enough is ready at once: nothing else of the request comes in between. True once."""
        intake = self._intakes.get(uid, {}).get(stage)
        if intake is None or intake.ready or not intake.waits_for or self._reach(uid, stage) <= 0:
            return False
        intake.ready = True
        return True
