"""A trace as OpenTelemetry spans, in OTLP's JSON: one a request, below it one a stage, linked along the edges.

Format: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding (ids in hex, 64-bit numbers as text, enums as
numbers). A request with a traceparent is put into its caller's trace, below the caller's span.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from omni_cli.errors import TraceError
from omni_cli.runtime.events import CONTROL
from omni_cli.trace.frame import TRACEPARENT, wall_ns
from omni_cli.trace.split import split
from omni_cli.trace.summary import OPEN, RequestSummary, RunSummary, StageSpan

_INTERNAL, _SERVER = 1, 2  # SpanKind
_OK, _ERROR = 1, 2  # StatusCode
Values = dict[str, str | int]
_BAD = ("failed", "lost", OPEN)


def otlp(run: RunSummary) -> dict[str, Any]:
    """TracesData. Times are the wall's, by the start of the run. TraceError without run_started."""
    if run.started is None:
        raise TraceError("the trace has no run_started, which has the wall time; an export needs the trace's beginning")
    spans = _Spans(run.started.run_id, wall_ns(run.started.wall_time) - run.started.t_ns)
    by_process: dict[str, list[dict[str, Any]]] = {CONTROL: []}
    for process in run.processes:
        by_process[process.process] = []
    for request in run.requests.values():
        by_process[CONTROL].append(spans.of_request(request))
        for span in request.stages.values():
            by_process.setdefault(span.process, []).append(spans.of_stage(request, span))
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes({"service.name": "omni", "service.instance.id": process})},
                "scopeSpans": [{"scope": {"name": "omni.trace"}, "spans": found}],
            }
            for process, found in by_process.items()
        ]
    }


class _Spans:
    def __init__(self, run_id: str, offset_ns: int) -> None:
        self._run_id = run_id
        self._offset_ns = offset_ns

    def of_request(self, request: RequestSummary) -> dict[str, Any]:
        spent = {
            f"omni.spent.{kind}{f'.{stage}' if stage else ''}_ns": ns for (kind, stage), ns in split(request).items()
        }
        what: Values = {"omni.request.id": request.request_id, "omni.outputs": ", ".join(request.outputs), **spent}
        span = self._span(request, "", _SERVER, request.admitted_ns, request.end_ns, what)
        message = request.error.message if request.error is not None else request.reason
        span["status"] = {"code": _ERROR if request.status in _BAD else _OK, "message": message or request.status}
        if (caller := _caller(request)) is not None:
            span["parentSpanId"] = caller[1]
        return span

    def of_stage(self, request: RequestSummary, stage: StageSpan) -> dict[str, Any]:
        what: Values = {
            "omni.request.id": request.request_id, "omni.process": stage.process, "omni.steps": len(stage.steps),
            "omni.units": stage.units, "omni.queue_ns": stage.queue_ns, "omni.wait_ns": stage.wait_ns,
            "omni.run_ns": stage.run_ns, "omni.stall_ns": stage.stall_ns,
        }  # fmt: skip
        span = self._span(request, stage.stage, _INTERNAL, stage.submitted_ns, stage.end_ns, what)
        span["parentSpanId"] = self._span_id(request, "")
        span["links"] = list(self._links(request, stage.stage))
        span["status"] = {"code": _ERROR if stage.status in _BAD else _OK, "message": stage.status}
        return span

    def _span(
        self, request: RequestSummary, stage: str, kind: int, start_ns: int, end_ns: int, what: Values
    ) -> dict[str, Any]:
        return {
            "traceId": self._trace_id(request),
            "spanId": self._span_id(request, stage),
            "name": stage or "request",
            "kind": kind,
            "startTimeUnixNano": str(start_ns + self._offset_ns),
            "endTimeUnixNano": str(end_ns + self._offset_ns),
            "attributes": _attributes(what),
        }

    def _links(self, request: RequestSummary, consumer: str) -> Iterator[dict[str, Any]]:
        for edge in request.edges.values():
            if edge.consumer == consumer and edge.producer in request.stages:
                yield {
                    "traceId": self._trace_id(request),
                    "spanId": self._span_id(request, edge.producer),
                    "attributes": _attributes({"omni.messages": edge.messages, "omni.bytes": edge.nbytes}),
                }

    def _trace_id(self, request: RequestSummary) -> str:
        if (caller := _caller(request)) is not None:
            return caller[0]
        return sha256(f"{self._run_id} {request.uid}".encode(errors="replace")).hexdigest()[:32]

    def _span_id(self, request: RequestSummary, stage: str) -> str:
        return sha256(f"{self._run_id} {request.uid} {stage}".encode(errors="replace")).hexdigest()[:16]


def _caller(request: RequestSummary) -> tuple[str, str] | None:
    """The trace and the span that the request was made in."""
    if not request.traceparent:
        return None
    if (found := TRACEPARENT.fullmatch(request.traceparent)) is None:
        raise ValueError(f"{request.traceparent!r} is no traceparent")
    return found[1], found[2]


def _attributes(values: Values) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]
