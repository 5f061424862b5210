"""`manifest.json`: what ran, in which versions, from which configuration, and what came out.

It holds names, numbers and digests: never the environment, the command line or the text of a request.
"""

import json
import platform
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Literal

from omni_cli.artifacts.atomic import write_text
from omni_cli.artifacts.records import ResultRecord, to_json

RunStatus = Literal["running", "finished", "failed", "interrupted"]

SCHEMA_VERSION = 1
DISTRIBUTION = "omni-stages"
PACKAGES = (
    DISTRIBUTION,
    "av",
    "diffusers",
    "hydra-core",
    "numpy",
    "omegaconf",
    "pillow",
    "pydantic",
    "safetensors",
    "soundfile",
    "soxr",
    "torch",
    "transformers",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Python, platform, and the installed packages; one that is not installed is left out."""

    python: str
    platform: str
    packages: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The whole run. Times are ISO 8601 with zone; `digests` are SHA-256 by what they are of (plan, ...)."""

    recipe: str
    status: RunStatus
    started_at: datetime
    versions: Versions
    finished_at: datetime | None = None
    digests: dict[str, str] = field(default_factory=dict)
    requests: tuple[ResultRecord, ...] = ()
    warnings: tuple[str, ...] = ()


def installed_versions(packages: tuple[str, ...] = PACKAGES) -> Versions:
    """Versions from the installed metadata; nothing is imported."""
    found: dict[str, str] = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return Versions(python=platform.python_version(), platform=platform.platform(), packages=found)


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Writes the manifest, whole, over an earlier one. Raises ArtifactError."""
    counts: dict[str, int] = dict(Counter(record.status for record in manifest.requests))
    counts["empty_outputs"] = sum(a.state == "empty" for record in manifest.requests for a in record.artifacts)
    body = {
        "schema_version": SCHEMA_VERSION,
        "recipe": manifest.recipe,
        "status": manifest.status,
        "started_at": manifest.started_at.isoformat(),
        "finished_at": manifest.finished_at.isoformat() if manifest.finished_at else None,
        "versions": to_json(manifest.versions),
        "digests": manifest.digests,
        "counts": counts,
        "warnings": list(manifest.warnings),
        "requests": [to_json(record) for record in manifest.requests],
    }
    # ASCII with escapes: a request id may be any string that JSON can carry.
    write_text(path, json.dumps(body, indent=2, allow_nan=False) + "\n")
