"""What `results.jsonl` and `manifest.json` say about a request and its files. The schema of both, and nothing else."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from omni_cli.errors import Fault
from stages.events import FinishReason

State = Literal["written", "empty"]
Status = Literal["finished", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactRecord:
    """One final output of a request. `empty`: the stage ended without a sample or character, so there is no file.

    `path` is relative to the run folder, with forward slashes. `finish_reason` says why the output ended: `length` if a
    limit cut it short.
    """

    output: str
    state: State = "written"
    finish_reason: FinishReason | None = None
    path: str | None = None
    media_type: str | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    duration_s: float | None = None
    rate_hz: int | None = None
    frames: int | None = None
    width: int | None = None
    height: int | None = None
    fps: float | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """Why a request did not finish. No traceback: that is in the log."""

    message: str
    fault: Fault
    stage: str | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRecord:
    """How one request ended: a line of `results.jsonl`.

    `folder` is the name of its folder in the run, `seed` the one it ran with, `digest` the SHA-256 of what was asked
    (so that `--resume` does not take an answer to another question), `metrics` named numbers such as `first_audio_s`.
    """

    request_id: str
    folder: str
    status: Status
    artifacts: tuple[ArtifactRecord, ...] = ()
    error: ErrorRecord | None = None
    seed: int | None = None
    digest: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def to_json(record: Any) -> dict[str, Any]:
    """A record as plain data; fields that say nothing are left out."""
    return _pruned(asdict(record))


def _pruned(value: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            item = _pruned(item)
        elif isinstance(item, (list, tuple)):
            item = [_pruned(entry) if isinstance(entry, dict) else entry for entry in item]
        if item is None or item == [] or item == {}:
            continue
        kept[key] = item
    return kept
