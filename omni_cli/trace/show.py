"""Draws a run's summary in a terminal: processes, then each request with a line of time per stage. Reads no files."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from omni_cli.trace.batches import Batches
from omni_cli.trace.split import KINDS, Level, levels
from omni_cli.trace.summary import QUEUE, RUN, STALL, WAIT, RequestSummary, RunSummary, type_of
from omni_cli.trace.timeline import MARKS, STYLES, Timeline

DETAILED = 20  # more requests than that get a line each
ID_WIDTH = 40  # of a request's id in an overview: one long id must not push the numbers out
TIMELINE_WIDTH = 72  # a narrower terminal has room for the numbers only
_STATUS_STYLES = {"finished": "green", "empty": "green", "failed": "bold red", "lost": "bold red"}


def show(console: Console, run: RunSummary, requests: Sequence[RequestSummary], *, live: bool = False) -> None:
    """Writes the summary; nothing is wider than the console. `live`: the trace is still being written."""
    console.print(_headline(run), no_wrap=True, overflow="ellipsis")
    if not run.whole:
        stops = "the trace is still being written" if live else "the trace stops before the end of the run"
        console.print(Text(stops, style="bold" if live else "bold red"))
    if run.processes:
        console.print(_processes(run))
    for batches in run.stages.values():
        console.print(Text(plain(_batches(batches)), overflow="fold"))
    if len(requests) > 1:
        console.print(*_levels(requests))
    if len(requests) > DETAILED:
        console.print(_overview(requests))
        console.print(Text("--request ID shows one of them in full", style="dim"))
        return
    for request in requests:
        console.print()
        console.print(Group(*_request(request, console.width)))
    if requests and console.width >= TIMELINE_WIDTH:
        console.print()
        console.print(_legend())


def plain(text: str) -> str:
    """One line that a terminal shows as it is: what could move the cursor is spelt out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)


def duration(ns: int | None) -> str:
    """Three digits with a unit: `780 us`, `45.6 ms`, `1.23 s`."""
    if ns is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if abs(ns) >= size:
            return f"{ns / size:.{_decimals(ns / size)}f} {unit}"
    return f"{ns / 1e3:.0f} us"


def size(nbytes: int) -> str:
    """Bytes in decimal units: `812 B`, `3.84 kB`, `64.0 MB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.{_decimals(nbytes / factor)}f} {unit}"
    return f"{nbytes} B"


def _decimals(value: float) -> int:
    return 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0


def _headline(run: RunSummary) -> Text:
    parts = (
        [f"run {run.started.run_id}", f"recipe {run.started.recipe}"] if run.started else ["a trace without a start"]
    )
    counts = Counter(request.status for request in run.requests.values())
    parts.append(", ".join(f"{count} {status}" for status, count in counts.items()) or "no requests")
    parts.append(duration(run.last_ns - run.first_ns))
    return Text(plain("  ".join(parts)), style="bold")


def _processes(run: RunSummary) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("process", "life", "pid", "start-up"):
        table.add_column(name, no_wrap=True, justify="left" if name == "process" else "right")
    table.add_column("what it is, and how it ended", overflow="fold")
    for process in run.processes:
        start = duration(process.ready_ns - process.started_ns) if process.ready_ns is not None else "never ready"
        words = [f"{key} {value}" for key, value in process.facts]
        died = process.dead_ns is not None and not process.expected
        ending = Text(plain(process.cause), style="bold red" if died else "dim")
        what = Text(plain(", ".join(words))).append("  " if words else "").append_text(ending)
        table.add_row(Text(plain(process.process)), str(process.generation), str(process.pid), start, what)
    return table


def _batches(batches: Batches) -> str:
    text = f"{batches.stage}: {counted(batches.steps, 'step')} of {batches.rows_a_step:.1f} rows"
    if batches.mixed:
        text += f", {batches.mixed} with prefill and decode, of up to {batches.ages} ages"
    if batches.frames_a_unit is not None:
        text += f", {batches.frames_a_unit:.2f} frames computed for each that was emitted"
    counters = [f"{name} {count}" for name, count in batches.counters.items() if count]
    return f"{text} ({', '.join(counters)})" if counters else text


def _overview(requests: Sequence[RequestSummary]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("request", overflow="ellipsis", no_wrap=True, max_width=ID_WIDTH)
    for name in ("status", "total", "TTFT", "TTFA", "RTF"):
        table.add_column(name, justify="left" if name == "status" else "right", no_wrap=True)
    for request in requests:
        rtfs = [rtf for rtf in map(request.rtf, request.outputs.values()) if rtf is not None]
        table.add_row(
            Text(plain(request.request_id)),
            _status(request.status),
            duration(request.total_ns),
            duration(request.ttft_ns),
            duration(request.ttfa_ns),
            f"{max(rtfs):.3f}" if rtfs else "-",
        )
    return table


def _levels(requests: Sequence[RequestSummary]) -> Iterator[RenderableType]:
    """What the mean latency was spent on, by the load."""
    found = levels(requests)
    if not found:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("in flight", "requests", "mean", *KINDS):
        table.add_column(name, justify="right", overflow="ellipsis", no_wrap=True)
    for level in found:
        spent = (duration(level.mean_ns(kind)) for kind in KINDS)
        table.add_row(level.name, str(level.requests), duration(level.mean_total_ns), *spent)
    yield table
    yield Text(plain(growth(found)), overflow="fold")


def growth(found: Sequence[Level]) -> str:
    """What the latency at the worst load is spent on; where that is not the lowest, what it is more than there."""
    first, last = found[0], max(found, key=lambda level: level.mean_total_ns)
    more_ns = last.mean_total_ns - first.mean_total_ns
    means = {share: ns / last.requests for share, ns in last.shares.items()}
    head = f"with {last.name} in flight a request takes {duration(last.mean_total_ns)}"
    if more_ns > 0:
        means = {share: ns - first.shares[share] / first.requests for share, ns in means.items()}
        head = f"from {first.name} to {last.name} in flight the mean grows by {duration(more_ns)}"
    largest = sorted(means.items(), key=lambda item: -item[1])[:2]
    words = (
        f"{duration(round(ns))} {kind}{f' in {stage}' if stage else ''}" for (kind, stage), ns in largest if ns > 0
    )
    return f"{head}, most of it " + " and ".join(words)


def _status(status: str) -> Text:
    return Text(status, style=_STATUS_STYLES.get(status, "yellow"))


def _request(request: RequestSummary, width: int) -> Iterator[RenderableType]:
    head = Text("request ", style="bold", no_wrap=True, overflow="ellipsis")
    head.append(plain(request.request_id)).append("  ").append_text(_status(request.status))
    numbers = [f"total {duration(request.total_ns)}"]
    numbers += [f"TTFT {duration(request.ttft_ns)}"] if request.ttft_ns is not None else []
    numbers += [f"TTFA {duration(request.ttfa_ns)}"] if request.ttfa_ns is not None else []
    yield head.append("  " + "  ".join(numbers), style="default")
    if request.traceparent is not None:
        yield Padding(Text(plain(f"traceparent {request.traceparent}"), style="dim", overflow="fold"), (0, 0, 0, 2))
    if request.error is not None:
        where = f"in {request.error.stage}: " if request.error.stage else ""
        yield Padding(Text(plain(f"{where}{request.error.kind}: {request.error.message}"), style="red"), (0, 0, 0, 2))
    if request.reason:
        yield Padding(Text(plain(request.reason), style="yellow"), (0, 0, 0, 2))
    if request.stages:
        yield Padding(_stages(request, width), (0, 0, 0, 2))
    for line in (*_outputs(request), *_edges(request), *_leads(request)):
        yield Padding(Text(plain(line), overflow="fold"), (0, 0, 0, 2))


def _stages(request: RequestSummary, width: int) -> Table:
    drawn = width >= TIMELINE_WIDTH
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=drawn, header_style="dim")
    table.add_column("stage", no_wrap=True, overflow="ellipsis", max_width=24)
    if drawn:
        table.add_column("", ratio=1)
    for name in (QUEUE, WAIT, RUN, STALL):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    end_ns = max([request.end_ns, *(span.end_ns for span in request.stages.values())])
    for span in request.stages.values():
        line = [Timeline(span.phases(), request.admitted_ns, end_ns)] if drawn else []
        numbers = (duration(ns) for ns in (span.queue_ns, span.wait_ns, span.run_ns, span.stall_ns))
        name = plain(span.process) + (f" (attempt {span.attempt})" if span.attempt > 1 else "")
        table.add_row(Text(name), *line, *numbers, str(len(span.steps)), _status(span.status))
    return table


def _outputs(request: RequestSummary) -> Iterator[str]:
    for output in request.outputs.values():
        units, pieces = counted(output.units, "unit"), counted(output.chunks, "piece")
        raw = " of pixels" if type_of(output.modality) in ("image", "video") else ""  # the file is compressed
        text = f"{output.modality} {output.status}: {units} in {pieces}, {size(output.nbytes)}{raw}"
        rtf = request.rtf(output)
        if type_of(output.modality) == "audio" and rtf is not None:
            text += f", {output.audio_s:.2f} s of sound, RTF {rtf:.3f}"
        yield text


def _edges(request: RequestSummary) -> Iterator[str]:
    for edge in request.edges.values():
        mean = f", hand-off {duration(edge.mean_hand_off_ns)}" if edge.got else ""
        messages = counted(edge.messages, "message")
        yield f"{edge.producer} -> {edge.consumer}: {messages}, {size(edge.nbytes)}{mean}"


def _leads(request: RequestSummary) -> Iterator[str]:
    """Which stages worked while the first one did."""
    for stage in request.stages:
        lead_ns = request.lead_ns(stage)
        if lead_ns is not None and lead_ns > 0:
            first = next(iter(request.stages))
            yield f"{stage} began {duration(lead_ns)} before the last step of {first}"


def _legend() -> Text:
    words = {QUEUE: "for input", WAIT: "for its turn", RUN: "in a step", STALL: "between steps"}
    text = Text()
    for kind, meaning in words.items():
        text.append(MARKS[kind], style=STYLES[kind]).append(f" {kind} ({meaning})  ", style="dim")
    return text


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
