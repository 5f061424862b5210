"""`omni run`: from words and options to tasks and a plan, to a run folder, a session and an exit code.

The order here is the order of a run's life: what can be found wrong before anything is written or started is.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.artifacts.writer import ArtifactWriter
from omni_cli.batch.display import AnswerDisplay, Display
from omni_cli.batch.lines import require_valid
from omni_cli.batch.options import RunOptions
from omni_cli.batch.progress import Progress, ProgressDisplay
from omni_cli.batch.resume import remaining
from omni_cli.batch.session import Session
from omni_cli.batch.state import RunState
from omni_cli.batch.summary import say_notes, say_summary
from omni_cli.batch.task import Task
from omni_cli.config.load import LoadedConfig, load_config
from omni_cli.console import logging_to
from omni_cli.errors import ArtifactError, ConfigError
from omni_cli.launch.signals import Interrupted, Interrupts
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import visible_devices
from omni_cli.plan.model import ExecutionPlan
from omni_cli.streams import say


def judge(words: Sequence[str], options: RunOptions) -> tuple[LoadedConfig, ExecutionPlan, tuple[Task, ...]]:
    """Everything that can be found wrong before anything is written or started. Raises OmniError with exit code 2."""
    loaded = load_config(words)
    tasks = options.tasks(loaded)
    wanted = sorted({output for task in tasks for output in task.outputs})
    plan = build_plan(loaded, visible_devices(), wanted or None)
    taken = {task.request_id for task in tasks}
    tasks = tuple(one.checked(plan) for task in tasks for one in task.pictures(taken))
    require_valid(tasks, options.input)
    return loaded, plan, tasks


def run_once(words: Sequence[str], options: RunOptions, *, resumable: bool = True) -> int:
    """The whole of `omni run` but for sweeps; returns the exit code. A run that is not `resumable` is a part of
    something that knows no --resume. Raises OmniError for what is refused."""
    with Interrupts() as interrupts:
        loaded, plan, tasks = judge(words, options)
        started_at = datetime.now().astimezone()
        with ExitStack() as stack:
            with _refused_if_not_writable():
                folder = _folder(options, loaded.recipe, started_at)
                state = RunState(plan=plan, folder=folder, started_at=started_at, tasks=tasks, resumable=resumable)
                writer = stack.enter_context(ArtifactWriter(folder))
                todo = remaining(state) if options.resume is not None else tasks
                folder.keep_plan(plan.document())
                stack.enter_context(_concluded(state, writer, quiet=options.quiet))
            if options.resume is not None and not options.quiet:
                say(f"{len(tasks) - len(todo)} of {len(tasks)} requests are done already")
            if options.input is None:
                say_notes(state)
            stack.enter_context(logging_to(folder.path / "run.log", quiet=options.quiet))
            with _shown(state, options, len(todo)) as display:
                Session(state, writer, interrupts, display, trace=loaded.config.trace.enabled).carry(todo)
    return state.exit_code


@contextmanager
def _refused_if_not_writable() -> Iterator[None]:
    """Before anything is started, a folder that cannot be written is a refusal."""
    try:
        yield
    except ArtifactError as error:
        raise ConfigError(str(error)) from error


def _folder(options: RunOptions, recipe: str, started_at: datetime) -> RunFolder:
    if options.resume is not None:
        return RunFolder.reopen(Path(options.resume))
    if options.out is not None:
        return RunFolder.claim(Path(options.out), ", or --resume the run in it")
    return RunFolder.create(recipe=recipe, started_at=started_at)


@contextmanager
def _concluded(state: RunState, writer: ArtifactWriter, *, quiet: bool) -> Iterator[None]:
    """The manifest at the start, and again at the end with a summary, whatever that end is."""
    writer.manifest(state.manifest())
    state.status = "failed"
    try:
        yield
        state.status = "finished" if state.exit_code == 0 else "failed"
    except Interrupted:
        state.status = "interrupted"
        raise
    finally:
        try:
            writer.manifest(state.manifest())
        finally:  # on a full disk as well it is said what failed
            say_summary(state, quiet=quiet)


@contextmanager
def _shown(state: RunState, options: RunOptions, todo: int) -> Iterator[Display]:
    """The answer of a single request as it comes; the progress of a batch."""
    if options.input is None:
        display: Display = AnswerDisplay(state.folder.path if options.quiet else None)
    elif options.quiet or not todo:
        display = Display()
    else:
        display = ProgressDisplay(Progress(tuple(s.name for s in state.plan.stages), todo), clock=time.monotonic)
    try:
        yield display
    finally:
        display.close()
        state.unshown = display.lost
