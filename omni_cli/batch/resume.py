"""What is left to do of a run that was begun before: what has not finished, and what is not what it was."""

import json
import shutil
from pathlib import Path

from omni_cli.artifacts.atomic import failed
from omni_cli.artifacts.results import finished
from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.batch.state import RunState
from omni_cli.batch.task import Task
from omni_cli.errors import ConfigError
from omni_cli.plan.model import ExecutionPlan


def remaining(state: RunState) -> list[Task]:
    """The tasks to run; what is done already stands in the state's results afterwards, a changed request in its
    warnings. Files of an earlier attempt at what is to be run are removed.

    Raises ConfigError for another plan, ArtifactError for files that cannot be removed.
    """
    _require_plan(state.folder, state.plan)
    done = finished(state.folder)
    foreign = sorted(done.keys() - {task.request_id for task in state.tasks})
    if foreign:
        raise ConfigError(
            f"{state.folder.path}: holds requests that this command does not have ({', '.join(foreign[:5])}); "
            "resume it with the command that made it"
        )
    todo = []
    for task in state.tasks:
        record = done.get(task.request_id)
        if record is not None and record.digest == task.digest:
            state.add(record)
            continue
        if record is not None and task.error is not None:
            state.add(record)
            state.warnings.append(f"request {task.request_id} keeps its result, but cannot be read now: {task.error}")
            continue
        if record is not None:
            state.warnings.append(f"request {task.request_id} is not what it was and is done again")
        _remove(state.folder.request_folder(task.request_id))
        todo.append(task)
    return todo


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise failed(folder, error) from error


def _require_plan(folder: RunFolder, plan: ExecutionPlan) -> None:
    """A run that was killed before it wrote its plan may be resumed with any."""
    try:
        digest = json.loads(folder.plan.read_text(encoding="utf-8"))["digest"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder.plan}: cannot be read as the plan of a run: {error}") from error
    if digest != plan.digest:
        raise ConfigError(
            f"{folder.plan}: that run was carried by another plan ({digest[:12]}, not {plan.digest[:12]}); "
            "resume it with the configuration and the outputs that made it"
        )
