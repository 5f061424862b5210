"""A replay in a terminal and as JSON: where it differs, a request's story, who holds what. Decides nothing."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from omni_cli.runtime.events import CONTROL, Event
from omni_cli.trace.check import Finding
from omni_cli.trace.codec import TraceEvent, encode
from omni_cli.trace.replay import Divergence, Replay
from omni_cli.trace.replay_state import ProcessState, ReplayState, RequestState, StageState
from omni_cli.trace.show import duration, plain
from omni_cli.trace.wording import told

SHOWN = 20  # requests
NAMED = 8  # of a group


def print_differences(path: Path, replay: Replay, findings: Sequence[Finding]) -> None:
    """The first difference of each request, since most others are its consequences."""
    for finding in findings[:1]:
        more = f", and {len(findings) - 1} findings more" if len(findings) > 1 else ""
        typer.echo(f"{path}:{finding.line}: {plain(finding.text)}{more} (omni trace check)")
    first: dict[int | None, Divergence] = {}
    for divergence in replay.divergences:
        first.setdefault(divergence.uid, divergence)
    for divergence in list(first.values())[:SHOWN]:
        uid = divergence.uid
        who = "no request" if uid is None else f"request {replay.names.get(uid, f'#{uid}')}"
        typer.echo(plain(f"{path}:{divergence.line}: {who}, on {divergence.cause} in line {divergence.after}:"))
        if divergence.note:
            typer.echo(f"  {plain(divergence.note)}")
        if divergence.recorded is not None or divergence.decided is not None:
            typer.echo(f"  the trace:   {plain(_told(divergence.recorded))}")
            typer.echo(f"  decided now: {plain(_told(divergence.decided))}")
    rest = len(replay.divergences) - min(len(first), SHOWN)
    if rest:
        typer.echo(f"and {rest} differences more, of these requests or of {max(0, len(first) - SHOWN)} others")
    if not replay.divergences:
        typer.echo(f"{path}: {replay.decisions} decisions on {replay.inputs} events, all as recorded")


def print_rate(replay: Replay, spent_ns: int) -> None:
    """How fast that was, in CPU time, as other work shall not count. A run's time is counted from its first request."""
    lasted_ns = replay.now_ns - (replay.first_ns or replay.now_ns)
    rate = replay.script.line / spent_ns * 1e9
    typer.echo(
        f"{duration(lasted_ns)} of the run in {duration(spent_ns)} of CPU time: "
        f"{lasted_ns / spent_ns:.0f} x, {rate:,.0f} events/s"
    )


def _told(event: Event | None) -> str:
    return "nothing" if event is None else told(event)


def document(
    replay: Replay, findings: Sequence[Finding], state: ReplayState | None, story: Sequence[TraceEvent]
) -> dict[str, Any]:
    """What `--json` prints; times in ns."""
    return {
        "inputs": replay.inputs,
        "decisions": replay.decisions,
        "whole": replay.whole,
        "findings": [asdict(finding) for finding in findings],
        "divergences": [_divergence(divergence, replay) for divergence in replay.divergences],
        "story": [json.loads(encode(line.source, line.ordinal, line.event)) for line in story],
        "state": None if state is None else asdict(state),
    }


def _divergence(divergence: Divergence, replay: Replay) -> dict[str, Any]:
    return {
        "line": divergence.line,
        "request": replay.names.get(divergence.uid or 0),
        "after_line": divergence.after,
        "after": divergence.cause or None,
        "note": divergence.note or None,
        **{
            name: None if event is None else json.loads(encode(CONTROL, 0, event)) | {"said": told(event)}
            for name, event in (("recorded", divergence.recorded), ("decided", divergence.decided))
        },
    }


def story_line(line: TraceEvent, start_ns: int, uid: int) -> Text:
    """One event of a request: when, who, what."""
    event = line.event
    when = duration(event.t_ns - start_ns)
    text = Text(f"{when:>9}  ")
    text.append(f"{plain(line.source):<14} ", style="bold" if line.source == CONTROL else "cyan")
    return text.append(plain(told(event, uid)))


def print_state(console: Console, state: ReplayState, replay: Replay, request: str | None) -> None:
    """Who holds what; of one request, if it is named."""
    start_ns = replay.started.t_ns if replay.started is not None else 0
    console.print(Text(f"after line {state.line}, {duration(state.now_ns - start_ns)} into the run", style="bold"))
    chosen = [r for r in state.requests if request in (None, r.request)]
    for one in chosen[:SHOWN]:
        console.print(Group(*_request(one, request_enters=one.request in state.entering)))
    if len(chosen) > SHOWN:
        console.print(Text(f"and {len(chosen) - SHOWN} requests more; --request ID shows one", style="dim"))
    if not chosen:
        console.print(Text("nothing is left of the request" if request else "no request is in flight"))
    for text in (*_processes(state.processes), *_rings(state)):
        console.print(Text(plain(text), overflow="fold"))


def _request(request: RequestState, request_enters: bool) -> Iterator[RenderableType]:
    yield Text(f"request {plain(request.request)}: {request.state}", style="bold")
    yield Padding(Text(request.why, style="yellow", overflow="fold"), (0, 0, 0, 2))
    lines = [_stage(stage) for stage in request.stages]
    if request_enters:
        lines.append("waits to enter: for its turn, or for room for its media")
    if request.to_come:
        lines.append(f"not given to {', '.join(request.to_come)} yet: nothing has come for it there")
    lines += [f"{o.modality} {o.state}: {o.units} units in {o.pieces} pieces" for o in request.outputs]
    held: dict[tuple[str, str], list[int]] = {}
    for lease in request.leases:
        held.setdefault((lease.owner, lease.reader), []).append(lease.slot)
    for (owner, reader), slots in held.items():
        what = f"holds slots {_listed(map(str, slots))} of {owner}"
        lines.append(f"{what}, which {reader} has not given back" if reader else f"{what}, which nobody reads now")
    yield Padding(Text("\n".join(map(plain, lines)), overflow="fold"), (0, 0, 0, 2))


def _stage(stage: StageState) -> str:
    inputs = "; ".join(
        f"{i.got} of {i.put} messages of {i.producer} read, {'the last was put' if i.ended else 'more to come'}"
        for i in stage.inputs
    )
    return f"{stage.process} {stage.state}, at {stage.position}" + (f": {inputs}" if inputs else "")


def _processes(processes: Sequence[ProcessState]) -> Iterator[str]:
    for process in processes:
        groups = {
            "ready": process.ready,
            "waiting for input": process.waiting,
            "letting go of": process.cancelling,
        }
        words = [f"{len(process.running)} of {process.max_batch} run" + _names(process.running)]
        words += [f"{len(names)} {what}{_names(names)}" for what, names in groups.items() if names]
        yield f"{process.process}: {', '.join(words) if process.alive else 'dead'}"


def _rings(state: ReplayState) -> Iterator[str]:
    for ring in state.rings:
        held = tuple(dict.fromkeys(ring.held_by))
        yield f"ring {ring.owner} -> {ring.consumer}: {ring.free} of {ring.slots} slots free{_names(held)}"


def _names(names: Sequence[str]) -> str:
    return f" ({_listed(names)})" if names else ""


def _listed(names: Iterable[str]) -> str:
    """Some of them, if they are many."""
    every = list(names)
    return " ".join(every[:NAMED]) + (f" and {len(every) - NAMED} more" if len(every) > NAMED else "")
