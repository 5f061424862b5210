"""The rings of one run: created before any stage exists, removed after the last is gone. Holds the parent's own ends.

It must not look into a payload, nor decide when a slot is free.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.errors import LaunchError
from omni_cli.runtime.processes import MediaPort, OutputPort
from stages.config import EdgeSpec, RingSpec, StageSpec
from stages.connectors.registry import open_reader, open_writer
from stages.connectors.ring import SHM_DIR as SHM_DIR
from stages.connectors.ring import (
    RingError,
    RingFile,
    create_ring,
    is_orphan,
    live_slots,
    remove_orphan,
    unlink,
)
from stages.messages import REQUEST

if TYPE_CHECKING:
    from stages.connectors.base import ConnectorReader, ConnectorWriter

SEGMENTS = re.compile(r"omni-[0-9a-f]{8,}-[\w-]+")


class Rings:
    """Every ring that the replicas of `specs` write, and the input rings that the parent writes."""

    def __init__(self, specs: Sequence[StageSpec]) -> None:
        self._specs = tuple(specs)
        self._files: list[RingFile] = []
        self._writers: dict[str, ConnectorWriter] = {}
        self._readers: dict[str, ConnectorReader] = {}

    @property
    def media_ports(self) -> Mapping[str, MediaPort]:
        return self._writers

    @property
    def output_ports(self) -> Mapping[str, OutputPort]:
        return self._readers

    def create(self) -> None:
        """Reserves the memory of every ring and opens the parent's ends. LaunchError if /dev/shm has no room.

        What was created until then is there still, for `remove`.
        """
        try:
            for spec in self._needed():
                self._files.append(create_ring(spec))
        except RingError as error:
            raise LaunchError(f"{error}. All rings of this run: {self._total_bytes() / 2**20:.1f} MiB") from error
        for stage in self._specs:
            for edge in _from_parent(stage):
                if stage.stage not in self._writers:  # its replicas share the ring
                    self._writers[stage.stage] = open_writer(edge, f"{REQUEST}.{stage.stage}", itertools.count())
            for edge in _to_parent(stage):
                self._readers[stage.process] = open_reader(edge)

    def unlink(self) -> None:
        """Removes every name, whoever is still there. Takes no lock and does not wait."""
        for file in self._files:
            with contextlib.suppress(FileNotFoundError):
                unlink(file.spec.segment)

    def remove(self) -> int:
        """Counts the slots that are still held, in the rings' own headers, and removes the rings. May be repeated."""
        held = 0
        try:
            for file in self._files:
                with contextlib.suppress(FileNotFoundError):
                    held += len(live_slots(file.spec.segment))
        finally:
            self.unlink()
            for writer in self._writers.values():
                writer.close()
            for reader in self._readers.values():
                reader.close()
            for file in self._files:
                file.close()
            self._files.clear()
        return held

    def _needed(self) -> Iterator[RingSpec]:
        """Each ring once: those that stages write, and those that the parent writes."""
        edges = [edge for stage in self._specs for edge in (*stage.consumers, *_from_parent(stage))]
        yield from {ring.segment: ring for edge in edges for ring in edge.rings}.values()

    def _total_bytes(self) -> int:
        return sum(ring.data_bytes for ring in self._needed())


def _from_parent(stage: StageSpec) -> list[EdgeSpec]:
    return [edge for edge in stage.inputs if edge.producer == REQUEST]


def _to_parent(stage: StageSpec) -> list[EdgeSpec]:
    return [edge for edge in stage.consumers if edge.consumer == REQUEST]


def stale_segments() -> list[str]:
    """Names of the rings of dead runs, of this user. A ring whose run is alive, in whatever process, is none."""
    return [path.name for path in _segments() if _is_stale(path)]


def remove_stale() -> list[str]:
    """Removes the rings of dead runs and returns their names."""
    return [path.name for path in _segments() if _removed(path)]


def _segments() -> list[Path]:
    folder = Path(SHM_DIR)
    named = (path for path in (folder.iterdir() if folder.is_dir() else ()) if SEGMENTS.fullmatch(path.name))
    return sorted(path for path in named if path.is_file() and os.access(path, os.R_OK | os.W_OK))


def _is_stale(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError, PermissionError):
        return is_orphan(str(path))
    return False


def _removed(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError, PermissionError):
        return remove_orphan(str(path))
    return False
