"""Writes a trace in Perfetto's own format, for ui.perfetto.dev: a process per stage replica, with its steps, requests
and counters, and an arrow per edge message. Computes nothing that `summary` has.

Format: https://perfetto.dev/docs/reference/synthetic-track-event (one packet sequence, times in ns).
"""

from collections import Counter
from collections.abc import Iterable
from itertools import count
from typing import IO

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackDescriptor, TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from omni_cli.runtime.events import (
    CONTROL,
    LeaseDropped,
    LeaseGranted,
    LeaseRead,
    MediaPut,
    ProcessDead,
    StageSubmitted,
)
from omni_cli.trace.codec import TraceEvent
from omni_cli.trace.summary import RUN, STALL, RequestSummary, RunSummary
from stages.events import (
    LeaseReleased,
    MessageGot,
    MessagePut,
    OutputProduced,
    Scheduled,
    StageCancelled,
    StageFailed,
    StageFinished,
    StepDone,
)
from stages.lease import Lease
from stages.messages import REQUEST

_SEQUENCE = 1
_CONTROL_PID = 1  # the control plane's own is not in the trace
QUEUE, BATCH, KV, RING = "queue", "batch", "KV blocks", "ring slots"


def write_perfetto(file: IO[bytes], events: Iterable[TraceEvent], run: RunSummary) -> None:
    """`run` is the summary of the same events."""
    writer = _Writer(file)
    pids = {process.process: process.pid for process in run.processes}
    for process, pid in {CONTROL: _CONTROL_PID, **pids}.items():
        writer.process(process, pid)
    for request in run.requests.values():
        _write_request(writer, request)
    counters, flows = _Counters(writer, run), _Flows(writer)
    for line in events:
        if isinstance(line.event, StepDone):
            _write_step(writer, line.source, line.event)
        elif isinstance(line.event, MessagePut | MediaPut | MessageGot):
            flows.see(line.source, line.event)
        counters.see(line.source, line.event)


def _utf8(text: str) -> str:
    """Half of a surrogate pair, which a trace may hold, has none."""
    return text.encode(errors="replace").decode()


class _Writer:
    def __init__(self, file: IO[bytes]) -> None:
        self._builder = StreamingTraceProtoBuilder(file)
        self._uuids = count(1)
        self._tracks: dict[tuple[str, ...], int] = {}
        self._begun = False

    def process(self, name: str, pid: int) -> None:
        packet, track = self._descriptor((name,))
        track.process.pid, track.process.process_name = pid, _utf8(name)
        self._write(packet)

    def track(self, process: str, name: str, of: str = "", *, counts: bool = False) -> int:
        """The track of a process with this name; `of` tells several apart, which the viewer shows as one."""
        key = (process, name, of)
        if key not in self._tracks:
            if (process,) not in self._tracks:
                self.process(process, 0)
            packet, track = self._descriptor(key)
            track.name, track.parent_uuid = _utf8(name), self._tracks[process,]
            if counts:
                track.counter.SetInParent()
            self._write(packet)
        return self._tracks[key]

    def event(self, track: int, t_ns: int, kind: int, name: str = "", **notes: object) -> TracePacket:
        """A packet that is yet to be written; `notes` are shown beside the slice."""
        packet = TracePacket(timestamp=t_ns)
        packet.track_event.track_uuid, packet.track_event.type = track, kind
        if name:
            packet.track_event.name = _utf8(name)
        for key, value in notes.items():
            packet.track_event.debug_annotations.add(name=_utf8(key), string_value=_utf8(str(value)))
        return packet

    def slice(self, track: int, start_ns: int, end_ns: int, name: str, **notes: object) -> None:
        self._write(self.event(track, start_ns, TrackEvent.TYPE_SLICE_BEGIN, name, **notes))
        self._write(self.event(track, end_ns, TrackEvent.TYPE_SLICE_END))

    def write_event(self, track: int, t_ns: int, kind: int, name: str = "", **notes: object) -> None:
        self._write(self.event(track, t_ns, kind, name, **notes))

    def arrow(self, track: int, t_ns: int, name: str, flow: int, *, ends: bool) -> None:
        packet = self.event(track, t_ns, TrackEvent.TYPE_INSTANT, name)
        event = packet.track_event
        (event.terminating_flow_ids if ends else event.flow_ids).append(flow)
        self._write(packet)

    def count(self, track: int, t_ns: int, value: int) -> None:
        packet = self.event(track, t_ns, TrackEvent.TYPE_COUNTER)
        packet.track_event.counter_value = value
        self._write(packet)

    def _descriptor(self, key: tuple[str, ...]) -> tuple[TracePacket, TrackDescriptor]:
        packet = TracePacket()
        packet.track_descriptor.uuid = self._tracks[key] = next(self._uuids)
        return packet, packet.track_descriptor

    def _write(self, packet: TracePacket) -> None:
        packet.trusted_packet_sequence_id = _SEQUENCE
        if not self._begun:
            packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
            self._begun = True
        self._builder.write_packet(packet)


def _write_request(writer: _Writer, request: RequestSummary) -> None:
    notes = {"status": request.status, "outputs": ", ".join(request.outputs)}
    whole = writer.track(CONTROL, "requests", str(request.uid))
    writer.slice(whole, request.admitted_ns, request.end_ns, request.request_id, **notes)
    for span in request.stages.values():
        track = writer.track(span.process, "requests", str(request.uid))
        writer.write_event(
            track, span.submitted_ns, TrackEvent.TYPE_SLICE_BEGIN, request.request_id, status=span.status,
            units=span.units, steps=len(span.steps),
        )  # fmt: skip
        for kind, start_ns, end_ns in span.phases():
            # the step of a request that was cancelled meanwhile may have begun later
            if kind != STALL and (kind != RUN or start_ns < span.end_ns):
                writer.slice(track, start_ns, min(end_ns, span.end_ns), kind)
        writer.write_event(track, span.end_ns, TrackEvent.TYPE_SLICE_END)


def _write_step(writer: _Writer, process: str, step: StepDone) -> None:
    phases = Counter(row.phase for row in step.rows)
    name = ", ".join(f"{number} {phase}" for phase, number in phases.items())
    notes = {"index": step.index, "units": sum(row.units for row in step.rows), **dict(step.counters)}
    writer.slice(writer.track(process, "steps"), step.t_ns, step.end_ns, name, **notes)


class _Flows:
    """An arrow from where a message was put to where it was read."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer
        self._ids = count(1)
        self._open: dict[tuple[int, str, str, int], int] = {}

    def see(self, process: str, event: MessagePut | MediaPut | MessageGot) -> None:
        if isinstance(event, MessageGot):
            key = (event.uid, event.producer, process.rpartition(".")[0], event.seq)
            flow: int | None = self._open.pop(key, None)
        else:
            if isinstance(event, MediaPut):
                key = (event.uid, REQUEST, event.consumer, 0)
            else:
                key = (event.uid, event.message.producer, event.message.consumer, event.message.seq)
            flow = self._open[key] = next(self._ids)
        if flow is not None:
            track = self._writer.track(process, "requests", str(event.uid))
            self._writer.arrow(track, event.t_ns, f"{key[1]} -> {key[2]}", flow, ends=isinstance(event, MessageGot))


class _Counters:
    """What each process holds: requests without a step, rows of the step, KV blocks, slots of its rings."""

    def __init__(self, writer: _Writer, run: RunSummary) -> None:
        self._writer = writer
        self._values: Counter[tuple[str, str]] = Counter()
        self._queued: dict[tuple[int, str], None] = {}
        self._kept: set[Lease] = set()  # their slots outlive the reading
        self._has_kv = {p.process for p in run.processes if "kv_blocks" in dict(p.facts)}

    def see(self, source: str, event: object) -> None:
        if isinstance(event, StepDone):
            self._set(source, BATCH, event.t_ns, len(event.rows))
            self._set(source, BATCH, event.end_ns, 0)
            if event.kv_blocks or source in self._has_kv:
                self._set(source, KV, event.t_ns, event.kv_blocks)
        elif isinstance(event, StageSubmitted):
            self._queued[event.uid, event.process] = None
            self._add(event.process, QUEUE, event.t_ns, 1)
        elif isinstance(event, Scheduled | StageFinished | StageFailed | StageCancelled):
            self._leave(event.uid, source, event.t_ns)
        elif isinstance(event, ProcessDead):
            for uid, process in tuple(self._queued):
                if process == event.process:
                    self._leave(uid, process, event.t_ns)
        elif isinstance(event, MessagePut):
            self._ring(event.message.lease, event.t_ns, 1)
        elif isinstance(event, MediaPut | OutputProduced):
            self._ring(event.lease, event.t_ns, 1)
        elif isinstance(event, LeaseGranted) and event.kept:
            self._kept.add(event.lease)
        elif isinstance(event, LeaseReleased) and event.lease in self._kept:
            pass
        elif isinstance(event, LeaseReleased | LeaseRead | LeaseDropped):
            self._kept.discard(event.lease)
            self._ring(event.lease, event.t_ns, -1)

    def _leave(self, uid: int, process: str, t_ns: int) -> None:
        if (uid, process) in self._queued:
            del self._queued[uid, process]
            self._add(process, QUEUE, t_ns, -1)

    def _ring(self, lease: Lease | None, t_ns: int, change: int) -> None:
        if lease is not None:
            owner = CONTROL if lease.owner.startswith(f"{REQUEST}.") else lease.owner
            self._add(owner, RING, t_ns, change)

    def _add(self, process: str, name: str, t_ns: int, change: int) -> None:
        self._set(process, name, t_ns, self._values[process, name] + change)

    def _set(self, process: str, name: str, t_ns: int, value: int) -> None:
        self._values[process, name] = value
        self._writer.count(self._writer.track(process, name, counts=True), t_ns, value)
