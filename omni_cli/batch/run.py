"""One run: tasks, plan, folder, trace, stages, engine, results. The order here is the order of a run's life."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from omni_cli.artifacts.atomic import write_text
from omni_cli.artifacts.manifest import Manifest, installed_versions
from omni_cli.artifacts.records import ResultRecord
from omni_cli.artifacts.results import finished
from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.artifacts.writer import ArtifactWriter
from omni_cli.batch.answer import Answer
from omni_cli.batch.delivery import Delivery
from omni_cli.batch.driver import BatchDriver
from omni_cli.batch.options import RunOptions
from omni_cli.batch.progress import Progress, ProgressDisplay
from omni_cli.batch.task import Task
from omni_cli.config.load import LoadedConfig, load_config
from omni_cli.console import logging_to
from omni_cli.errors import ArtifactError, ConfigError
from omni_cli.launch.launcher import LocalLauncher
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import visible_devices
from omni_cli.plan.model import ExecutionPlan
from omni_cli.plan.spec import stage_specs
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import CONTROL, Listener, RunFinished
from omni_cli.runtime.fanout import Fanout
from omni_cli.streams import say
from omni_cli.trace.frame import run_started
from omni_cli.trace.recorder import Recorder

EXIT_FAILED = 1


@dataclass(slots=True)
class RunState:
    """What a run has become so far; the manifest is made of it."""

    recipe: str
    plan: ExecutionPlan
    folder: RunFolder
    started_at: datetime
    results: dict[str, ResultRecord] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    dead: dict[str, str] = field(default_factory=dict)
    unshown: OSError | None = None  # why the answer could not be shown on stdout; the files have it

    def manifest(self, status: str) -> Manifest:
        running = status == "running"
        return Manifest(
            recipe=self.recipe,
            status=status,  # type: ignore[arg-type]
            started_at=self.started_at,
            finished_at=None if running else datetime.now().astimezone(),
            versions=installed_versions(),
            digests={"plan": self.plan.digest},
            requests=tuple(self.results.values()),
            warnings=tuple(self.warnings),
        )

    @property
    def failed(self) -> list[ResultRecord]:
        return [record for record in self.results.values() if record.status != "finished"]


def judge(words: Sequence[str], options: RunOptions) -> tuple[LoadedConfig, ExecutionPlan, tuple[Task, ...]]:
    """Everything that can be found wrong before anything is written or started. Raises OmniError with exit code 2."""
    loaded = load_config(words)
    tasks = options.tasks(loaded)
    wanted = sorted({output for task in tasks for output in task.outputs})
    plan = build_plan(loaded, visible_devices(), wanted)
    tasks = tuple(task.checked(plan) for task in tasks)
    if options.input is None and tasks[0].error is not None:
        raise tasks[0].error
    return loaded, plan, tasks


def run_once(words: Sequence[str], options: RunOptions) -> int:
    """The whole of `omni run` but for sweeps; returns the exit code. Raises OmniError for what is refused."""
    with Interrupts() as interrupts:
        loaded, plan, tasks = judge(words, options)
        started_at = datetime.now().astimezone()
        with ExitStack() as stack:
            with _refused_if_not_writable():
                folder = _folder(options, loaded.recipe, started_at)
                state = RunState(recipe=loaded.recipe, plan=plan, folder=folder, started_at=started_at)
                writer = stack.enter_context(ArtifactWriter(folder))
                stack.enter_context(logging_to(folder.path / "run.log", quiet=options.quiet))
                todo = _todo(tasks, state) if options.resume else tasks
                stack.enter_context(_manifest(writer, state))
            if todo:
                _run_tasks(todo, tasks, state, options, writer, interrupts, trace=loaded.config.trace.enabled)
    return _conclude(state, tasks, options)


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
        return RunFolder.claim(Path(options.out))
    return RunFolder.create(recipe=recipe, started_at=started_at)


def _todo(tasks: Sequence[Task], state: RunState) -> list[Task]:
    """What the resumed run has not finished; an answer to another question counts for nothing, and is reported."""
    plan = state.folder.plan
    if plan.exists() and plan.read_text(encoding="utf-8") != _plan_text(state.plan):
        raise ConfigError(f"{plan}: that run was carried by another plan; resume with the configuration that made it")
    done = finished(state.folder)
    todo = []
    for task in tasks:
        record = done.get(task.request_id)
        if record is not None and record.digest == task.digest:
            state.results[task.request_id] = record
            continue
        if record is not None:
            state.warnings.append(f"{task.where}: request {task.request_id} is not what it was and is done again")
        todo.append(task)
    return todo


@contextmanager
def _manifest(writer: ArtifactWriter, state: RunState) -> Iterator[None]:
    """Written at the start, and again at the end whatever that is."""
    write_text(state.folder.plan, _plan_text(state.plan))
    writer.manifest(state.manifest("running"))
    status = "interrupted"
    try:
        yield
        status = "failed" if state.failed or state.dead else "finished"
    except Exception:
        status = "failed"
        raise
    finally:
        writer.manifest(state.manifest(status))


def _plan_text(plan: ExecutionPlan) -> str:
    return plan.model_dump_json(indent=2) + "\n"


def _run_tasks(
    todo: Sequence[Task],
    tasks: Sequence[Task],
    state: RunState,
    options: RunOptions,
    writer: ArtifactWriter,
    interrupts: Interrupts,
    *,
    trace: bool,
) -> None:
    """Starts the stages, drives the tasks, stops the stages; the trace covers all of it."""
    plan = state.plan
    run_id = secrets.token_hex(4)
    # Room for the largest request and one that is still being read.
    media_bytes = 2 * max((task.media_bytes for task in tasks), default=0)
    specs = stage_specs(plan, run_id, media_bytes=media_bytes)
    with ExitStack() as stack:
        listeners: list[Listener] = []
        recorder = _recorder(state, stack) if trace else None
        if recorder is not None:
            listeners.append(recorder)
        if options.input is not None and not options.quiet:
            progress = Progress(tuple(stage.name for stage in plan.stages), len(todo))
            display = ProgressDisplay(progress, clock=time.monotonic)
            stack.callback(display.close)
            listeners.append(display)
        listener = Fanout(*listeners)
        listener(CONTROL, run_started(plan, run_id, state.started_at))
        live_slots = 0
        try:
            running = LocalLauncher(plan, specs, listener=listener).start()
            interrupts.register(running)
            try:
                asyncio.run(_drive(todo, state, options, writer, interrupts, running, listener))
            finally:
                live_slots = running.stop()
        finally:  # after a start that failed as well
            events = recorder.events if recorder is not None else 0
            listener(CONTROL, RunFinished(t_ns=time.monotonic_ns(), live_slots=live_slots, events=events))


def _recorder(state: RunState, stack: ExitStack) -> Recorder:
    """`trace.jsonl`, or for a resumed run `trace-2.jsonl` and so on."""
    path, number = state.folder.trace, 1
    while path.exists():
        number += 1
        path = state.folder.trace.with_name(f"trace-{number}.jsonl")
    recorder = Recorder(path)
    stack.callback(recorder.close)
    return recorder


async def _drive(
    todo: Sequence[Task],
    state: RunState,
    options: RunOptions,
    writer: ArtifactWriter,
    interrupts: Interrupts,
    running: object,
    listener: Listener,
) -> None:
    plan = state.plan

    def on_result(record: ResultRecord) -> None:
        state.results[record.request_id] = record

    answer = Answer()
    async with OmniEngine(plan, running, listener=listener) as engine:  # type: ignore[arg-type]
        driver = BatchDriver(
            engine,
            Delivery(writer, plan.outputs),
            window=2 * max(stage.max_batch * len(stage.replicas) for stage in plan.entries),
            on_chunk=lambda task, chunk: answer.take(chunk) if options.input is None else None,
            on_result=on_result,
        )
        work = asyncio.ensure_future(driver.run(todo))
        loop = asyncio.get_running_loop()
        with interrupts.handled_by(lambda: loop.call_soon_threadsafe(work.cancel)):
            try:
                await work
            except asyncio.CancelledError:
                interrupts.check()
                raise
            finally:
                answer.close()
                state.unshown = answer.lost
        state.dead = dict(engine.dead)


def _conclude(state: RunState, tasks: Sequence[Task], options: RunOptions) -> int:
    """Says where everything is and what failed; the exit code."""
    for warning in state.warnings:
        say(f"warning: {warning}")
    places = {task.request_id: task.where for task in tasks if options.input is not None}
    for record in state.results.values():
        place = places.get(record.request_id)
        for warning in (*record.warnings, *(w for artifact in record.artifacts for w in artifact.warnings)):
            say(f"warning: {place or record.request_id}: {warning}")
        for artifact in record.artifacts:
            if artifact.state == "empty":
                say(
                    f"{place or record.request_id}: no {artifact.output}: "
                    "the stage finished without any (finished: empty)"
                )
        if record.error is not None:
            say(f"{record.status}: {f'{place}: ' if place else ''}{record.error.message}")
    if state.failed:
        say(f"{len(state.failed)} of {len(tasks)} requests failed")
    if state.unshown is not None:
        say(f"stdout: cannot be written: {state.unshown.strerror}; the text is in the run's folder")
    if not options.quiet:
        say(f"files: {_shown(state.folder.path)}")
    return EXIT_FAILED if state.failed or state.dead or state.unshown else 0


def _shown(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
