"""Prometheus metrics from the events of a run, the same that the trace holds.

A listener: it is called in the event loop's thread and must return at once.
"""

from collections.abc import Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from omni_cli.runtime.events import (
    Event,
    MediaPut,
    ProcessDead,
    ProcessStarted,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    StageSubmitted,
)
from omni_cli.trace.summary import OPEN, RequestSummary, type_of
from stages.events import (
    MessageGot,
    MessagePut,
    OutputProduced,
    ProcessReady,
    Scheduled,
    StageCancelled,
    StageFailed,
    StageFinished,
    StepDone,
)
from stages.messages import REQUEST

CONTENT_TYPE = CONTENT_TYPE_LATEST

Handler = Callable[[str, Any], None]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_HAND_OFF_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1)
_RTF = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5)


def stage_of(process: str) -> str:
    return process.rpartition(".")[0]


class Metrics:
    """All series, in a registry of their own. Counters carry the process, as a trace's events do."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests: dict[int, RequestSummary] = {}
        self._at: dict[tuple[int, str], tuple[str, Gauge]] = {}  # (uid, stage): the process and the gauge that count it
        self._define()
        self._handlers: dict[type[Event], Handler] = {
            ProcessStarted: self._started,
            ProcessReady: lambda source, event: self.up.labels(source).set(1),
            ProcessDead: self._died,
            RequestAdmitted: self._admitted,
            StageSubmitted: lambda source, event: self._move(event.uid, event.process, self.queued),
            Scheduled: lambda source, event: self._move(event.uid, source, self.running),
            StageFinished: lambda source, event: self._move(event.uid, source, None),
            StageFailed: lambda source, event: self._move(event.uid, source, None),
            StageCancelled: lambda source, event: self._move(event.uid, source, None),
            StepDone: self._step,
            MediaPut: lambda source, event: self._put(event, REQUEST, event.consumer, 0, event.nbytes),
            MessagePut: self._put_message,
            MessageGot: self._got,
            OutputProduced: self._output,
            RequestFinished: lambda source, event: self._ended(event, "finished"),
            RequestFailed: lambda source, event: self._ended(event, "failed"),
            RequestCancelled: lambda source, event: self._ended(event, "cancelled"),
        }

    def __call__(self, source: str, event: Event) -> None:
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(source, event)

    def text(self, *, running: int, waiting: int) -> bytes:
        """The exposition; `running` and `waiting` are the calls at the server's door."""
        self.calls_running.set(running)
        self.calls_waiting.set(waiting)
        return generate_latest(self._registry)

    def _define(self) -> None:
        registry = self._registry
        process, edge = ["process"], ["producer", "consumer"]
        self.up = Gauge("omni_process_up", "1 while the stage process is ready", process, registry=registry)
        self.restarts = Counter("omni_process_restarts", "Starts after the first", process, registry=registry)
        stage = ["stage", "process"]
        self.queued = Gauge("omni_stage_queued", "Requests not yet part of a step", stage, registry=registry)
        self.running = Gauge("omni_stage_running", "Requests being worked on", stage, registry=registry)
        self.busy = Counter("omni_stage_busy_seconds", "Time in steps", process, registry=registry)
        self.steps = Counter("omni_stage_steps", "Steps", process, registry=registry)
        self.units = Counter("omni_stage_units", "Tokens, frames or steps of denoising", process, registry=registry)
        self.kv_blocks = Gauge("omni_stage_kv_blocks", "KV blocks in use in the last step", process, registry=registry)
        self.hand_off_bytes = Counter("omni_hand_off_bytes", "Bytes put on an edge", edge, registry=registry)
        self.hand_off = Histogram(
            "omni_hand_off_seconds", "From put to read", edge, buckets=_HAND_OFF_S, registry=registry
        )
        self.outcomes = Counter("omni_requests", "Requests that have ended", ["outcome"], registry=registry)
        self.latency = Histogram(
            "omni_request_seconds", "From admission to the end", ["outcome"], buckets=_SECONDS, registry=registry
        )
        self.first = {
            "text": Histogram("omni_ttft_seconds", "To the first text", buckets=_SECONDS, registry=registry),
            "audio": Histogram("omni_ttfa_seconds", "To the first sample", buckets=_SECONDS, registry=registry),
        }
        self.gap = Histogram(
            "omni_output_gap_seconds", "Between two pieces of audio", buckets=_SECONDS, registry=registry
        )
        self.rtf = Histogram("omni_rtf", "Time to the last sample over playing time", buckets=_RTF, registry=registry)
        self.calls_running = Gauge("omni_server_calls_running", "Calls that have a place", registry=registry)
        self.calls_waiting = Gauge("omni_server_calls_waiting", "Calls that wait for one", registry=registry)

    def _admitted(self, source: str, event: RequestAdmitted) -> None:
        self._requests[event.uid] = RequestSummary.admitted(event)

    def _started(self, source: str, event: ProcessStarted) -> None:
        self.up.labels(event.process).set(0)
        self.restarts.labels(event.process).inc(event.generation > 0)

    def _died(self, source: str, event: ProcessDead) -> None:
        self.up.labels(event.process).set(0)
        for uid in [uid for (uid, _), (process, _) in self._at.items() if process == event.process]:
            self._move(uid, event.process, None)

    def _move(self, uid: int, process: str, to: Gauge | None) -> None:
        stage = stage_of(process)
        before, left = self._at.pop((uid, stage), (process, None))
        if left is not None:
            left.labels(stage, before).dec()
        if to is not None:
            self._at[uid, stage] = process, to
            to.labels(stage, process).inc()
        else:
            self._let_go(uid)

    def _let_go(self, uid: int) -> None:
        """Once all its stages have ended: what they still say of a request that has failed counts, as in the trace."""
        request = self._requests.get(uid)
        if request is not None and request.status != OPEN and not any(held == uid for held, _ in self._at):
            del self._requests[uid]

    def _step(self, source: str, event: StepDone) -> None:
        self.busy.labels(source).inc((event.end_ns - event.t_ns) / 1e9)
        self.steps.labels(source).inc()
        self.units.labels(source).inc(sum(row.units for row in event.rows))
        self.kv_blocks.labels(source).set(event.kv_blocks)

    def _put_message(self, source: str, event: MessagePut) -> None:
        message = event.message
        nbytes = message.ref.nbytes if message.ref is not None else 0
        self._put(event, message.producer, message.consumer, message.seq, nbytes)

    def _put(self, event: MessagePut | MediaPut, producer: str, consumer: str, seq: int, nbytes: int) -> None:
        self.hand_off_bytes.labels(producer, consumer).inc(nbytes)
        request = self._requests.get(event.uid)
        if request is not None:
            request.edge(producer, consumer).put(seq, nbytes, event.t_ns)

    def _got(self, source: str, event: MessageGot) -> None:
        request, consumer = self._requests.get(event.uid), stage_of(source)
        took_ns = request.edge(event.producer, consumer).take(event.seq, event.t_ns) if request is not None else None
        if took_ns is not None:
            self.hand_off.labels(event.producer, consumer).observe(took_ns / 1e9)

    def _output(self, source: str, event: OutputProduced) -> None:
        request = self._requests.get(event.uid)
        output = request.outputs.get(event.modality) if request is not None else None
        if request is None or output is None:
            return
        kind, last_ns = type_of(event.modality), output.last_ns
        unheard = request.first_ns(kind) is None
        if not output.take(event):
            return
        if unheard and kind in self.first:
            self.first[kind].observe((event.t_ns - request.admitted_ns) / 1e9)
        if kind == "audio" and last_ns is not None:
            self.gap.observe((event.t_ns - last_ns) / 1e9)

    def _ended(self, event: RequestFinished | RequestFailed | RequestCancelled, outcome: str) -> None:
        request = self._requests.get(event.uid)
        if request is None:
            return
        request.status, request.end_ns = outcome, event.t_ns
        self._let_go(event.uid)
        self.outcomes.labels(outcome).inc()
        self.latency.labels(outcome).observe(request.total_ns / 1e9)
        if outcome == "finished":
            for output in request.outputs.values():
                rtf = request.rtf(output)
                if rtf is not None:
                    self.rtf.observe(rtf)
