"""A batch file: one JSON object a line, each a request. A bad line is a failed task; a bad file is refused."""

from collections.abc import Mapping, Sequence

from omni_cli.batch.task import Task, make_task
from omni_cli.config.load import LoadedConfig
from omni_cli.config.request import request_line
from omni_cli.errors import InputError
from omni_cli.inputs.limits import MIB, InputLimits
from omni_cli.inputs.text import parse_json, read_text

_LIMITS = InputLimits(max_text_bytes=1024 * MIB)  # of the file; a line is as long as it needs


def read_tasks(path: str, loaded: LoadedConfig) -> tuple[Task, ...]:
    """All lines of the file as tasks, in order; blank lines count for nothing.

    Raises InputError if the file cannot be read, or no line of it is a valid request.
    """
    text = read_text(path, "batch file", limits=_LIMITS, errors="surrogateescape")
    lines = {number: line for number, line in enumerate(text.split("\n"), start=1) if line.strip()}
    values = {number: _parse(line) for number, line in lines.items()}
    names = _names(values)
    taken = set(names.values())
    first: dict[str, int] = {}
    tasks = []
    for number, value in values.items():
        name, where = names[number], f"{path}:{number}"
        if name in first:
            error = InputError(f"id {name!r} stands on line {first[name]} already", param="id")
            tasks.append(Task(request_id=_free(f"line-{number}", taken), where=where, error=error))
        else:
            first[name] = number
            tasks.append(_task(value, where, name, loaded))
    require_valid(tasks, path)
    return tuple(tasks)


def require_valid(tasks: Sequence[Task], path: str | None) -> None:
    """Raises InputError if none of the tasks can be run; `path` is the batch file, None for a single request."""
    if any(task.error is None for task in tasks):
        return
    if path is None:
        raise tasks[0].error or InputError("there is no request")
    problems = "\n".join(f"  {task.where}: {task.error}" for task in tasks[:10])
    raise InputError(f"{path}: no line is a valid request\n{problems}" if tasks else f"{path}: holds no request")


def _names(values: Mapping[int, object]) -> dict[int, str]:
    """What each request is called: by its own id, else by its line, in no other request's way."""
    given = {
        number: value["id"]
        for number, value in values.items()
        if isinstance(value, dict) and isinstance(value.get("id"), str) and value["id"]
    }
    taken = set(given.values())
    return {number: given.get(number) or _free(f"line-{number}", taken) for number in values}


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "-"
    return name


def _task(value: object, where: str, name: str, loaded: LoadedConfig) -> Task:
    try:
        if isinstance(value, InputError):
            raise value
        return make_task(request_line(value, loaded), loaded, request_id=name, where=where, keep=False)
    except InputError as error:
        return Task(request_id=name, where=where, error=error)


def _parse(line: str) -> object:
    """A line's value, or the InputError that it is."""
    try:
        line.encode()
        return parse_json(line)
    except UnicodeEncodeError as error:  # a byte that did not decode stands there as a surrogate
        byte = len(line[: error.start].encode())
        return InputError(f"is not UTF-8 text (byte {byte}): save it as UTF-8")
    except InputError as error:
        return error
