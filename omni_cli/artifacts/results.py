"""`results.jsonl`: a line as each request ends. One process writes it; a last line torn by a kill does not count."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from omni_cli.artifacts.atomic import failed, write_all
from omni_cli.artifacts.records import ResultRecord, to_json
from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.config.report import worded
from omni_cli.errors import ArtifactError, ConfigError

_RECORD = TypeAdapter(ResultRecord)


class ResultsLog:
    """Appends to the results of a run. It holds a lock on the file, which ends with the process.

    Raises ArtifactError where the file cannot be written, or another process is writing it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise failed(path, error) from error
        try:
            self._lock()
            self._cut_torn_line()
        except BaseException:
            os.close(self._descriptor)
            raise

    def append(self, record: ResultRecord) -> None:
        """Hands one whole line to the kernel, so that it outlives this process; on failure none of it stays."""
        size = os.fstat(self._descriptor).st_size
        try:
            write_all(self._descriptor, encode_line(to_json(record)))
        except OSError as error:
            os.ftruncate(self._descriptor, size)
            raise failed(self._path, error) from error

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> "ResultsLog":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ArtifactError(f"{self._path}: another process is writing to this run") from error

    def _cut_torn_line(self) -> None:
        try:
            data = self._path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole != len(data):
                os.ftruncate(self._descriptor, whole)
        except OSError as error:
            raise failed(self._path, error) from error


def encode_line(value: dict[str, Any]) -> bytes:
    """One line of JSON in UTF-8. A lone surrogate has no UTF-8: such a line is written with escapes."""
    try:
        return f"{json.dumps(value, ensure_ascii=False, allow_nan=False)}\n".encode()
    except UnicodeEncodeError:
        return f"{json.dumps(value, allow_nan=False)}\n".encode("ascii")


def read_results(path: Path) -> tuple[ResultRecord, ...]:
    """All whole lines; a last one without its line end was torn and is left out; no file is no line.

    Raises ConfigError naming file and line where a whole line is not a result.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    return tuple(_parse(path, number, line) for number, line in enumerate(lines, start=1))


def finished(run: RunFolder) -> dict[str, ResultRecord]:
    """What need not be done again, by request id: the last word on it is `finished`, and its files are there."""
    last = {record.request_id: record for record in read_results(run.results)}
    return {key: record for key, record in last.items() if _is_done(run, record)}


def _is_done(run: RunFolder, record: ResultRecord) -> bool:
    if record.status != "finished":
        return False
    for artifact in record.artifacts:
        if artifact.path is None:
            continue
        path = run.path / artifact.path
        if not path.is_file() or path.stat().st_size != artifact.size_bytes:
            return False
    return True


def _parse(path: Path, number: int, line: bytes) -> ResultRecord:
    try:
        # json, not pydantic's own parser: that one refuses escaped lone surrogates.
        return _RECORD.validate_python(json.loads(line))
    except (ValueError, ValidationError) as error:
        first = worded(error.errors()[0]) if isinstance(error, ValidationError) else error
        raise ConfigError(f"{path}, line {number}: is not a result of a run: {first}") from error
