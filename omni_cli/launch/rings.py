"""The rings of one run: created before the stage that writes them, removed after the last is gone, or when a dead
replica's are read to the end. Holds the parent's own ends.

It must not look into a payload, nor decide when a slot is free.
"""

import contextlib
import itertools
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.errors import LaunchError, RunEnding
from stages.config import EdgeSpec, RingSpec, StageSpec
from stages.connectors.registry import open_reader, open_writer
from stages.connectors.ring import SHM_DIR, RingError, RingFile, create_ring, is_orphan, live_slots, unlink
from stages.messages import REQUEST

if TYPE_CHECKING:
    from stages.connectors.base import ConnectorReader, ConnectorWriter

SEGMENTS = re.compile(r"omni-[0-9a-f]{8,}-[\w-]+")


class Rings:
    """Every ring that the replicas of `specs` write, and the input rings that the parent writes."""

    def __init__(self, specs: Sequence[StageSpec]) -> None:
        self._specs = tuple(specs)
        # Of what `renew` changes in its threads, while others walk through it. Nobody waits for a file in it.
        self._lock = threading.Lock()
        self._removed = False
        self._files: dict[str, RingFile] = {}  # by segment
        # By process, what each of its lives writes: consumer -> ring. Those that are read to the end are gone.
        self._lives = {spec.process: {spec.generation: _written(spec)} for spec in specs}
        self.media_ports: dict[str, ConnectorWriter] = {}
        self.output_ports: dict[str, ConnectorReader] = {}

    def create(self) -> None:
        """Reserves the memory of every ring and opens the parent's ends. LaunchError if /dev/shm has no room.

        What was created until then is there still, for `remove`.
        """
        try:
            for ring in self._needed():
                self._files[ring.segment] = create_ring(ring)
        except RingError as error:
            mib = sum(ring.data_bytes for ring in self._needed()) / 2**20
            raise LaunchError(f"{error}. All rings of this run: {mib:.1f} MiB") from error
        for stage in self._specs:
            for edge in _from_parent(stage):
                if stage.stage not in self.media_ports:  # its replicas share the ring
                    self.media_ports[stage.stage] = open_writer(edge, f"{REQUEST}.{stage.stage}", itertools.count())
            for edge in stage.consumers:
                if edge.consumer == REQUEST:
                    self.output_ports[stage.process] = open_reader(edge)

    def renew(self, process: str, generation: int) -> None:
        """Creates the rings that a replica writes in its next life, in any thread: all of them or none.

        LaunchError if /dev/shm has no room for them, RunEnding after `remove`, OSError.
        """
        first = next(spec for spec in self._specs if spec.process == process)
        rings = {
            consumer: replace(ring, segment=f"{ring.segment}-g{generation}")
            for consumer, ring in _written(first).items()
        }
        created: list[RingFile] = []
        try:
            for ring in rings.values():
                created.append(create_ring(ring))
            with self._lock:
                if self._removed:
                    raise RunEnding("the run is ending")
                self._files |= {file.spec.segment: file for file in created}
                self._lives[process][generation] = rings
        except BaseException as error:
            for file in created:
                _discard(file)
            if isinstance(error, RingError):
                raise LaunchError(str(error)) from error
            raise

    def spec(self, process: str, generation: int) -> StageSpec:
        """What a replica is told for its next life: its new rings, and all that it may be sent to read from."""
        first = next(spec for spec in self._specs if spec.process == process)
        own = self._lives[process][generation]
        if process in self.output_ports and REQUEST in own:
            self.output_ports[process].attach(own[REQUEST])
        return replace(
            first,
            generation=generation,
            inputs=tuple(self._attached(edge) for edge in first.inputs),
            consumers=tuple(replace(e, rings=(own[e.consumer],)) if e.rings else e for e in first.consumers),
        )

    def _attached(self, edge: EdgeSpec) -> EdgeSpec:
        """The edge with the rings of all lives of its producers."""
        if edge.producer == REQUEST or not edge.rings:
            return edge
        producers = [life for process, life in self._lives.items() if process.rpartition(".")[0] == edge.producer]
        with self._lock:
            lives = [rings for life in producers for rings in life.values()]
        return replace(edge, rings=tuple(rings[edge.consumer] for rings in lives))

    def retire(self, process: str, generation: int) -> Mapping[str, RingSpec]:
        """Removes what a dead replica has written: nobody will be sent to it any more. By consumer."""
        with self._lock:
            rings = self._lives[process].pop(generation, {})  # none, if there was no room for them
            files = [file for ring in rings.values() if (file := self._files.pop(ring.segment, None))]
        if REQUEST in rings:
            self.output_ports[process].detach(rings[REQUEST].segment)
        for file in files:
            _discard(file)
        return rings

    def unlink(self) -> None:
        """Removes every name, whoever is still there. Takes no lock and does not wait."""
        for segment in tuple(self._files):
            with contextlib.suppress(FileNotFoundError):
                unlink(segment)

    def remove(self) -> int:
        """Counts the slots that are still held, in the rings' own headers, and removes the rings. May be repeated."""
        with self._lock:
            self._removed = True
            files = dict(self._files)
        held = 0
        try:
            for segment in files:
                with contextlib.suppress(FileNotFoundError):
                    held += len(live_slots(segment))
        finally:
            self.unlink()
            for writer in self.media_ports.values():
                writer.close()
            for reader in self.output_ports.values():
                reader.close()
            for file in files.values():
                file.close()
            self._files.clear()
        return held

    def _needed(self) -> Iterator[RingSpec]:
        """Each ring once: those that stages write, and those that the parent writes."""
        edges = [edge for stage in self._specs for edge in (*stage.consumers, *_from_parent(stage))]
        yield from {ring.segment: ring for edge in edges for ring in edge.rings}.values()


def _discard(file: RingFile) -> None:
    with contextlib.suppress(FileNotFoundError):
        unlink(file.spec.segment)
    file.close()


def _written(stage: StageSpec) -> dict[str, RingSpec]:
    return {edge.consumer: ring for edge in stage.consumers for ring in edge.rings}


def _from_parent(stage: StageSpec) -> list[EdgeSpec]:
    return [edge for edge in stage.inputs if edge.producer == REQUEST]


def stale_segments(*, remove: bool = False) -> list[str]:
    """Names of the rings of dead runs, of this user, which `remove` removes. A ring whose run is alive, in whatever
    process, is none."""
    folder, found = Path(SHM_DIR), []
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        if SEGMENTS.fullmatch(path.name) and path.is_file() and os.access(path, os.R_OK | os.W_OK):
            with contextlib.suppress(FileNotFoundError, PermissionError):
                if is_orphan(str(path), remove=remove):
                    found.append(path.name)
    return found
