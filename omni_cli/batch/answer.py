"""The text of a run's only request, on stdout as it comes. Only shown: the run and its files do not depend on it."""

import sys

from omni_cli import streams
from omni_cli.runtime.request import OutputChunk


class Answer:
    """Shows what `take` is given. `lost` is why stdout could not take it all; that a reader has left is no reason."""

    def __init__(self) -> None:
        self.lost: OSError | None = None
        self._line_is_open = False

    def take(self, chunk: OutputChunk) -> None:
        if chunk.modality == "text":
            self._show(chunk.text + ("\n" if chunk.eos else ""))

    def close(self) -> None:
        """Ends the line of a text that broke off, before anything is said about it."""
        if self._line_is_open:
            self._show("\n")

    def _show(self, text: str) -> None:
        if not text:
            return
        self._line_is_open = not text.endswith("\n")
        error = streams.put(sys.stdout, text)
        if error is not None and not isinstance(error, BrokenPipeError):
            self.lost = error
