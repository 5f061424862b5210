"""The first and last lines of `omni run`, for a person: what is known of a request before it starts; what came out,
what failed and why, where everything is."""

from collections.abc import Iterator

from omni_cli.artifacts.records import ResultRecord
from omni_cli.batch.state import RunState
from omni_cli.config.files import shown
from omni_cli.streams import say


def say_notes(state: RunState) -> None:
    """On stderr, what the tasks ask for in vain, while it can still be stopped. The summary does not repeat it."""
    state.said = tuple(dict.fromkeys(note for task in state.tasks for note in task.notes))
    for note in state.said:
        say(f"warning: {note}")


def say_summary(state: RunState, *, quiet: bool) -> None:
    """On stderr; all but where the files are is said with `quiet` too. A run that was cut short says what it takes to
    end it."""
    for line in _lines(state):
        say(line)
    if not quiet:
        for line in _files(state):
            say(line)
        say(f"files: {shown(state.folder.path)}")


def _files(state: RunState) -> Iterator[str]:
    """The files of a command line's request, but for the text, which was shown."""
    if any(task.where for task in state.tasks):
        return
    for record in state.results.values():
        for artifact in record.artifacts:
            if artifact.path is not None and artifact.output != "text":
                yield f"{artifact.output}: {shown(state.folder.path / artifact.path)}"


def _lines(state: RunState) -> Iterator[str]:
    for warning in state.warnings:
        yield f"warning: {warning}"
    places = {task.request_id: f"{task.where}: " for task in state.tasks if task.where}
    for record in state.results.values():
        place = places.get(record.request_id, "")
        yield from _of_request(record, place, state.said)
    for process, cause in state.dead.items():
        yield f"failed: stage process {process} died: {cause}"
    failed, total = len(state.failed), len(state.tasks)
    if state.status == "interrupted":
        done = len(state.results) - failed
        rest = f"; --resume {shown(state.folder.path)} does the rest" if state.resumable else ""
        yield f"interrupted: {done} of {total} requests finished{rest}"
    elif failed:
        yield f"{failed} of {total} requests failed"
    if state.unshown is not None:
        yield f"stdout: cannot be written: {state.unshown.strerror}; the text is in the run's folder"


def _of_request(record: ResultRecord, place: str, said: tuple[str, ...]) -> Iterator[str]:
    yield from (f"warning: {place}{warning}" for warning in record.warnings if warning not in said)
    for artifact in record.artifacts:
        yield from (f"warning: {place}{warning}" for warning in artifact.warnings)
        if artifact.state == "empty":
            yield f"{place}request {record.request_id} has no {artifact.output}: nothing came (finished: empty)"
    if record.error is not None:
        yield f"{record.status}: {place}{record.error.message}"
