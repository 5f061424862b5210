"""`omni trace replay`: the run once more, without its processes, held against what it has recorded. Only reads."""

import json
import logging
import time
from typing import Annotated

import typer

from omni_cli.artifacts.run_folder import OUTPUTS
from omni_cli.errors import TraceError
from omni_cli.runtime.events import RunStarted
from omni_cli.runtime.heap import settled_heap
from omni_cli.trace.check import Checked
from omni_cli.trace.reader import TraceReader, find_trace
from omni_cli.trace.recorded_plan import recorded_plan
from omni_cli.trace.replay import Replay
from omni_cli.trace.replay_show import document, print_differences, print_rate, print_state, story_line
from omni_cli.trace.replay_state import state_of
from omni_cli.trace.show import plain
from omni_cli.trace.until import Until

app = typer.Typer()


@app.command("replay")
def replay_trace(
    run: Annotated[str, typer.Argument(metavar="RUN", help="As for `omni trace show`.")] = "latest",
    request: Annotated[
        str | None, typer.Option("--request", metavar="ID", help="Step through this one: what happens to it, by whom.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="T|EVENT", help="Stop and say who holds what: 1.5s or 300ms into the run, n, a kind."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, times in ns.")] = False,
) -> None:
    """Give the recorded events to this version's orchestrator: does it take the same decisions?

    Exit code 1 if it does not, or if `omni trace check` has something to say.
    """
    from rich.console import Console

    point = None if until is None else Until.parse(until)
    path = find_trace(run, OUTPUTS)
    first = next(iter(TraceReader(path)), None)
    started = first.event if first is not None and isinstance(first.event, RunStarted) else None
    plan = recorded_plan(path, started.plan_digest if started is not None else None)
    checked = Checked(TraceReader(path))
    replay = Replay(plan, checked)
    logging.getLogger("omni").addHandler(logging.NullHandler())  # what is said now of the run was said then
    console, begin_ns = Console(), time.process_time_ns()
    story = []
    with settled_heap():
        if request is None and point is None:
            replay.run()
        else:
            for line in replay.story(request, point):
                if as_json:
                    story.append(line)
                else:
                    text = story_line(line, started.t_ns if started is not None else 0, replay.uids[request or ""])
                    console.print(text, soft_wrap=True)
    spent_ns = time.process_time_ns() - begin_ns
    if request is not None and request not in replay.uids:
        names = ", ".join(plain(name) for name in list(replay.uids)[:10]) or "none"
        raise TraceError(f"--request {plain(request)}: no such request up to there; there is {names}")
    state = state_of(replay, plan) if point is not None else None
    if as_json:
        typer.echo(json.dumps(document(replay, checked.findings, state, story), indent=2))
    else:
        if state is not None:
            print_state(console, state, replay, request)
        print_differences(path, replay, checked.findings)
        print_rate(replay, spent_ns)
    if replay.divergences or checked.findings:
        raise typer.Exit(1)
