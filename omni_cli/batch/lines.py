"""A batch file: one JSON object a line, each a request. A bad line is a failed task; a bad file is refused."""

import json
from pathlib import Path

from omni_cli.batch.task import Task, make_task
from omni_cli.config.load import LoadedConfig
from omni_cli.config.request import request_line
from omni_cli.errors import InputError
from omni_cli.inputs.text import decode_text


def read_tasks(path: str, loaded: LoadedConfig) -> tuple[Task, ...]:
    """All lines of the file as tasks, in order; blank lines count for nothing.

    Raises InputError if the file cannot be read, or no line of it is a valid request.
    """
    text = decode_text(Path(path), label=f"batch file {Path(path).absolute()}")
    tasks: list[Task] = []
    taken: set[str] = set()
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            tasks.append(_task(line, f"{path}:{number}", f"line-{number}", loaded, taken))
            taken.add(tasks[-1].request_id)
    if all(task.error is not None for task in tasks):
        problems = "\n".join(f"  {task.where}: {task.error}" for task in tasks[:10])
        raise InputError(f"{path}: no line is a valid request\n{problems}" if tasks else f"{path}: holds no request")
    return tuple(tasks)


def _task(line: str, where: str, default_id: str, loaded: LoadedConfig, taken: set[str]) -> Task:
    request_id = default_id
    try:
        checked = request_line(_parse(line), loaded)
        if checked.id in taken:
            raise InputError(f"id {checked.id!r} stands on an earlier line already", param="id")
        request_id = checked.id or default_id
        return make_task(checked, loaded, request_id=request_id, where=where, keep=False)
    except InputError as error:
        return Task(request_id=request_id, where=where, error=error)


def _parse(line: str) -> object:
    """JSON with every key once: of two, json would silently take the last."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            raise InputError(f"key {next(k for k in keys if keys.count(k) > 1)!r} stands there twice")
        return found

    try:
        return json.loads(line, object_pairs_hook=once)
    except ValueError as error:
        raise InputError(f"is not JSON: {error}") from error
