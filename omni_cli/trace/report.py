"""A run's summary as JSON, for scripts. Times are in ms, from the start of the run or as durations; null is unknown."""

from collections.abc import Iterable
from typing import Any

from omni_cli.trace.batches import Batches
from omni_cli.trace.split import split
from omni_cli.trace.summary import EdgeFlow, OutputFlow, ProcessSummary, RequestSummary, RunSummary, StageSpan


def report(run: RunSummary, requests: Iterable[RequestSummary]) -> dict[str, Any]:
    """What `omni trace show --json` prints."""
    started = run.started
    return {
        "run_id": started.run_id if started else None,
        "recipe": started.recipe if started else None,
        "plan_digest": started.plan_digest if started else None,
        "wall_time": started.wall_time if started else None,
        "whole": run.whole,
        "total_ms": _ms(run.last_ns - run.first_ns),
        "processes": [_process(process, run.first_ns) for process in run.processes],
        "stages": [_batches(batches) for batches in run.stages.values()],
        "requests": [_request(request, run.first_ns) for request in requests],
    }


def _ms(ns: int | None, since_ns: int = 0) -> float | None:
    return None if ns is None else round((ns - since_ns) / 1e6, 6)


def _process(process: ProcessSummary, start_ns: int) -> dict[str, Any]:
    return {
        "process": process.process,
        "generation": process.generation,
        "pid": process.pid,
        "started_ms": _ms(process.started_ns, start_ns),
        "ready_ms": _ms(process.ready_ns, start_ns),
        "dead_ms": _ms(process.dead_ns, start_ns),
        "expected": process.expected,
        "cause": process.cause,
        "facts": dict(process.facts),
    }


def _batches(batches: Batches) -> dict[str, Any]:
    return {
        "stage": batches.stage,
        "steps": batches.steps,
        "rows_a_step": round(batches.rows_a_step, 6),
        "units": batches.units,
        "mixed_steps": batches.mixed,
        "ages": batches.ages,
        "counters": dict(batches.counters),
        "frames_a_unit": batches.frames_a_unit,
    }


def _request(request: RequestSummary, start_ns: int) -> dict[str, Any]:
    error = request.error
    return {
        "id": request.request_id,
        "uid": request.uid,
        "status": request.status,
        "error": {"kind": error.kind, "message": error.message, "stage": error.stage} if error else None,
        "reason": request.reason or None,
        "traceparent": request.traceparent,
        "admitted_ms": _ms(request.admitted_ns, start_ns),
        "total_ms": _ms(request.total_ns),
        "ttft_ms": _ms(request.ttft_ns),
        "ttfa_ms": _ms(request.ttfa_ns),
        "spent": [{"on": kind, "stage": stage or None, "ms": _ms(ns)} for (kind, stage), ns in split(request).items()],
        "stages": [_stage(request, span, start_ns) for span in request.stages.values()],
        "edges": [_edge(edge) for edge in request.edges.values()],
        "outputs": [_output(request, output) for output in request.outputs.values()],
    }


def _stage(request: RequestSummary, span: StageSpan, start_ns: int) -> dict[str, Any]:
    return {
        "stage": span.stage,
        "process": span.process,
        "status": span.status,
        "attempt": span.attempt,
        "submitted_ms": _ms(span.submitted_ns, start_ns),
        "end_ms": _ms(span.end_ns, start_ns),
        "queue_ms": _ms(span.queue_ns),
        "wait_ms": _ms(span.wait_ns),
        "run_ms": _ms(span.run_ns),
        "stall_ms": _ms(span.stall_ns),
        "total_ms": _ms(span.total_ns),
        "lead_ms": _ms(request.lead_ns(span.stage)),
        "steps": len(span.steps),
        "units": span.units,
    }


def _edge(edge: EdgeFlow) -> dict[str, Any]:
    return {
        "producer": edge.producer,
        "consumer": edge.consumer,
        "messages": edge.messages,
        "bytes": edge.nbytes,
        "hand_off_ms": _ms(edge.mean_hand_off_ns),
    }


def _output(request: RequestSummary, output: OutputFlow) -> dict[str, Any]:
    rtf = request.rtf(output)
    return {
        "modality": output.modality,
        "status": output.status,
        "units": output.units,
        "chunks": output.chunks,
        "bytes": output.nbytes,
        "first_ms": _ms(output.first_ns, request.admitted_ns),
        "last_ms": _ms(output.last_ns, request.admitted_ns),
        "audio_s": output.audio_s or None,
        "rtf": None if rtf is None else round(rtf, 6),
    }
