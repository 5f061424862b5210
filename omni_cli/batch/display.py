"""What a person sees while requests run. Only shown: no run depends on it."""

import sys

from omni_cli import streams
from omni_cli.artifacts.records import ResultRecord
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
    """The text of a run's only request, on stdout as it comes. That a reader has left is no loss."""

    def __init__(self) -> None:
        self._line_is_open = False

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
