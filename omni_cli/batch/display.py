"""What a person sees while requests run. Only shown: no run depends on it."""

import sys
from pathlib import Path

from omni_cli import streams
from omni_cli.artifacts.records import ResultRecord
from omni_cli.config.files import shown
from omni_cli.runtime.events import Event
from omni_cli.runtime.request import OutputChunk


class Display:
    """Shows nothing: what `--quiet` shows of a batch. `lost` is why stdout could not take all of an answer."""

    lost: OSError | None = None

    def event(self, source: str, event: Event) -> None:
        """Something has happened, in the control plane or in a stage."""

    def chunk(self, chunk: OutputChunk) -> None:
        """A piece of an output has come."""

    def result(self, record: ResultRecord) -> None:
        """A request has ended, and its files are written."""

    def close(self) -> None:
        """No more will come; other lines may follow on the screen."""


class AnswerDisplay(Display):
    """The text of a run's only request, on stdout as it comes; without a text, where `files` is the run's folder,
    the paths of what was made. That a reader has left is no loss."""

    def __init__(self, files: Path | None = None) -> None:
        self._files = files
        self._line_is_open = False

    def result(self, record: ResultRecord) -> None:
        written = [artifact for artifact in record.artifacts if artifact.path is not None]
        if self._files is not None and all(artifact.output != "text" for artifact in written):
            for artifact in written:
                self._show(f"{shown(self._files / str(artifact.path))}\n")

    def chunk(self, chunk: OutputChunk) -> None:
        if chunk.modality == "text":
            self._show(chunk.text + ("\n" if chunk.eos else ""))

    def close(self) -> None:
        """Ends the line of a text that broke off."""
        if self._line_is_open:
            self._show("\n")

    def _show(self, text: str) -> None:
        if not text:
            return
        self._line_is_open = not text.endswith("\n")
        error = streams.put(sys.stdout, text)
        if error is not None and not isinstance(error, BrokenPipeError):
            self.lost = error
