import base64
import io
import shutil
from collections import Counter
from dataclasses import replace

import pytest
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import Status, TracesData
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

from omni_cli.runtime.events import RequestAdmitted
from omni_cli.trace.export_otlp import otlp
from omni_cli.trace.export_perfetto import write_perfetto
from omni_cli.trace.summary import summarise
from stages.events import MessageGot, StepDone
from tests.trace.scenarios import SCENARIOS

PROCESSOR = shutil.which("trace_processor_shell")
TRACE_ID, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BEGIN, END, INSTANT, COUNTER = (
    TrackEvent.TYPE_SLICE_BEGIN,
    TrackEvent.TYPE_SLICE_END,
    TrackEvent.TYPE_INSTANT,
    TrackEvent.TYPE_COUNTER,
)


def exported(name: str) -> bytes:
    trace, file = SCENARIOS[name](1), io.BytesIO()
    write_perfetto(file, trace, summarise(trace))
    return file.getvalue()


def events_of(name: str) -> tuple[dict[int, tuple[str, str]], dict[int, list[TrackEvent]]]:
    """(process, name) of each track, and its events in the order of time, checked for what Perfetto asks of them."""
    parsed = Trace.FromString(exported(name))
    assert {packet.trusted_packet_sequence_id for packet in parsed.packet} == {1}
    processes, tracks, events = {}, {}, {}
    for packet in sorted(parsed.packet, key=lambda p: p.timestamp):
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            if track.HasField("process"):
                processes[track.uuid] = track.process.process_name
            else:
                tracks[track.uuid] = (processes[track.parent_uuid], track.name)
        else:
            events.setdefault(packet.track_event.track_uuid, []).append(packet.track_event)
    assert len(set(processes.values())) == len(processes)
    assert events.keys() == tracks.keys()
    return tracks, events


@pytest.mark.parametrize("name", SCENARIOS)
def test_perfetto_has_every_process_request_step_and_arrow(name):
    trace, (tracks, events) = SCENARIOS[name](1), events_of(name)
    run = summarise(trace)
    kinds = Counter()
    arrows = {"from": Counter(), "to": Counter()}
    slices = Counter()
    for uuid, track in events.items():
        open_slices = 0
        for event in track:
            kinds[event.type] += 1
            open_slices += {BEGIN: 1, END: -1}.get(event.type, 0)
            assert open_slices >= 0
            arrows["from"].update(event.flow_ids)
            arrows["to"].update(event.terminating_flow_ids)
            slices[*tracks[uuid], event.name] += event.type == BEGIN
        assert open_slices == 0
        if tracks[uuid][1] in ("queue", "batch", "ring slots"):
            assert {event.type for event in track} == {COUNTER}
            assert min(event.counter_value for event in track) == 0
    steps = Counter(line.source for line in trace if isinstance(line.event, StepDone))
    for process, number in steps.items():
        assert sum(n for (p, t, _), n in slices.items() if (p, t) == (process, "steps")) == number
    for request in run.requests.values():
        for process in ("omni", *(span.process for span in request.stages.values())):
            assert slices[process, "requests", request.request_id] == 1
    assert set(arrows["from"].values()) == {1}
    assert arrows["to"].keys() <= arrows["from"].keys()
    assert len(arrows["to"]) == sum(isinstance(line.event, MessageGot) for line in trace)


@pytest.mark.skipif(
    PROCESSOR is None,
    reason="Perfetto's own trace processor is not here; to run this, put trace_processor_shell on PATH "
    "(https://perfetto.dev/docs/analysis/trace-processor)",
)
def test_perfettos_own_processor_loads_it(tmp_path):
    path = tmp_path / "trace.pftrace"
    path.write_bytes(exported("finished"))
    with TraceProcessor(trace=str(path), config=TraceProcessorConfig(bin_path=PROCESSOR)) as processor:
        (errors,) = processor.query("select sum(value) as n from stats where severity = 'error'")
        (flows,) = processor.query("select count(*) as n from flow")
    assert (errors.n or 0, flows.n > 0) == (0, True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_otlp_is_what_opentelemetry_reads(name):
    trace = [
        replace(line, event=replace(line.event, traceparent=f"00-{TRACE_ID}-{CALLER}-01"))
        if isinstance(line.event, RequestAdmitted) and line.event.uid == 1
        else line
        for line in SCENARIOS[name](1)
    ]
    run, data = summarise(trace), otlp(summarise(trace))
    spans = [s for resource in data["resourceSpans"] for scope in resource["scopeSpans"] for s in scope["spans"]]
    assert len({span["spanId"] for span in spans}) == len(spans)
    assert len(spans) == sum(1 + len(request.stages) for request in run.requests.values())
    for holder in (*spans, *(link for span in spans for link in span.get("links", ()))):
        for key in {"traceId", "spanId", "parentSpanId"} & holder.keys():  # OTLP has hex where protobuf has base64
            holder[key] = base64.b64encode(bytes.fromhex(holder[key])).decode()
    parsed = json_format.ParseDict(data, TracesData())
    found = [s for resource in parsed.resource_spans for scope in resource.scope_spans for s in scope.spans]
    by_id = {span.span_id: span for span in found}
    for span in found:
        assert len(span.trace_id) == 16
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
        if span.parent_span_id in by_id:
            assert by_id[span.parent_span_id].trace_id == span.trace_id
        else:
            assert span.parent_span_id in (b"", bytes.fromhex(CALLER))
        assert {link.span_id for link in span.links} <= by_id.keys()
    ours = [span for span in found if span.trace_id == bytes.fromhex(TRACE_ID)]
    assert len(ours) == 1 + len(run.requests[1].stages)
    failed = sum(request.status == "failed" for request in run.requests.values())
    assert sum(s.name == "request" and s.status.code == Status.STATUS_CODE_ERROR for s in found) == failed
