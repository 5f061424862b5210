"""`omni trace`: shows a run's timeline, says why a request waits, checks that nothing went wrong. Only reads."""

import json
import os
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from typing import Annotated

import typer

from omni_cli.artifacts.atomic import write_bytes
from omni_cli.artifacts.run_folder import OUTPUTS
from omni_cli.commands import trace_diff, trace_replay, trace_whatif
from omni_cli.errors import TraceError
from omni_cli.trace.check import check as find
from omni_cli.trace.reader import PATTERN, TraceReader, being_written, find_trace, find_traces
from omni_cli.trace.report import report
from omni_cli.trace.show import plain, show
from omni_cli.trace.soundness import presumed_sound
from omni_cli.trace.summary import OPEN, RequestSummary, RunSummary, summarise
from omni_cli.trace.why import ending, moment

MAX_PRINTED = 50  # findings; most are consequences of the first few

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Show, check, replay and compare what runs have recorded."
)
app.add_typer(trace_replay.app)
app.add_typer(trace_diff.app)
app.add_typer(trace_whatif.app)

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help=f"A run's folder, a trace.jsonl, the beginning of a run's name under {OUTPUTS}/, or `latest`.",
    ),
]


@app.command("show")
def show_trace(
    run: Run = "latest",
    request: Annotated[str | None, typer.Option("--request", metavar="ID", help="This request only.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, times in ms.")] = False,
) -> None:
    """Per request and stage: queue, wait, run and stall; TTFT, TTFA, RTF, bytes and hand-off per edge."""
    path = find_trace(run, OUTPUTS)
    summary = summarise(TraceReader(path))
    requests = _chosen(summary, request)
    if as_json:
        typer.echo(json.dumps(report(summary, requests), indent=2))
        return
    from rich.console import Console

    show(Console(), summary, requests, live=being_written(path))


@app.command("why")
def why_trace(
    request: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST",
            help="The request's id, as `omni trace show` names it. A run with one request needs none.",
            show_default=False,
        ),
    ] = "",
    run: Run = "latest",
    at_ms: Annotated[
        float | None, typer.Option("--at", metavar="MS", min=0, help="So long after its admission; else at the end.")
    ] = None,
) -> None:
    """What a request waits for, in a paragraph: not submitted, data, a slot, its steps, or to be routed."""
    if (request == "latest" or _has_run(request)) and not _has_run(run):
        request, run = "" if run == "latest" else run, request  # the order of every other command
    reader = TraceReader(find_trace(run, OUTPUTS))
    chosen = _chosen(summarise(reader), request, "omni trace why REQUEST [RUN]: ")[-1]
    after_ns = None if at_ms is None else round(at_ms * 1e6)
    if chosen.status != OPEN and (after_ns is None or after_ns >= chosen.total_ns):
        typer.echo(ending(chosen))
        return
    state = moment(reader, chosen.request_id, after_ns)
    record = state.find(chosen.request_id) if state is not None else None
    if state is None or record is None:
        raise TraceError(f"{reader.path}: has no run_started, which says what the stages are")
    typer.echo(state.why(record))


class Format(StrEnum):
    PERFETTO = "perfetto"
    OTLP_JSON = "otlp-json"


_SUFFIXES = {Format.PERFETTO: ".pftrace", Format.OTLP_JSON: ".otlp.json"}


@app.command("export")
def export_trace(
    run: Run = "latest",
    format: Annotated[Format, typer.Option(help="For ui.perfetto.dev, or for OpenTelemetry.")] = Format.PERFETTO,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Default: beside the trace.")] = None,
) -> None:
    """Write a run for another viewer: processes, requests, steps, arrows along the edges, counters."""
    from omni_cli.trace.export_otlp import otlp
    from omni_cli.trace.export_perfetto import write_perfetto

    reader = TraceReader(find_trace(run, OUTPUTS))
    path = out or reader.path.with_suffix(_SUFFIXES[format])
    with presumed_sound(reader):
        summary = summarise(reader)
        if format is Format.PERFETTO:
            file = BytesIO()
            write_perfetto(file, reader, summary)
            data = file.getvalue()
        else:
            data = json.dumps(otlp(summary), ensure_ascii=False).encode(errors="replace")
    write_bytes(path, data)
    typer.echo(path)


@app.command("check")
def check_trace(run: Run = "latest") -> None:
    """Folds the events through the lifecycle tables and the lease ledger. Exit code 1 if anything is wrong.

    All traces of a run that was resumed are checked. One that is still being written may end anywhere.
    """
    clean = [_is_clean(path) for path in find_traces(run, OUTPUTS)]
    if not all(clean):
        raise typer.Exit(1)


def _has_run(path: str) -> bool:
    return os.path.isfile(path) or (os.path.isdir(path) and any(Path(path).glob(PATTERN)))


def _is_clean(path: Path) -> bool:
    live = being_written(path)  # asked first: what ends meanwhile is no finding
    reader = TraceReader(path)
    findings = [finding for finding in find(reader) if not (live and finding.truncated)]
    for finding in findings[:MAX_PRINTED]:
        typer.echo(f"{path}:{finding.line}: {plain(finding.text)}")
    if len(findings) > MAX_PRINTED:
        typer.echo(f"... and {len(findings) - MAX_PRINTED} more")
    if live:
        typer.echo(f"{path}: is still being written{'' if findings else '; what is there is clean'}")
        return not findings
    if reader.torn:
        typer.echo(f"{path}: the last line is torn and was left out")
    if not findings:
        typer.echo(f"{path}: clean")
    return not findings


def _chosen(summary: RunSummary, request_id: str | None, option: str = "--request ") -> list[RequestSummary]:
    requests = list(summary.requests.values())
    if request_id is None or (not request_id and len(requests) == 1):
        return requests
    chosen = [request for request in requests if request.request_id == request_id]
    if not chosen:
        names = ", ".join(plain(request.request_id) for request in requests[:10]) or "none"
        more = f" and {len(requests) - 10} more" if len(requests) > 10 else ""
        wrong = f"{plain(request_id)}: no such request in the trace; it" if request_id else "which request? The trace"
        raise TraceError(f"{option}{wrong} has {names}{more}")
    return chosen
