"""The soundness of a trace that was taken for granted: asked for once work on it has failed, never before."""

from collections.abc import Iterator
from contextlib import contextmanager

from omni_cli.errors import TraceError
from omni_cli.trace.check import check
from omni_cli.trace.reader import TraceReader
from omni_cli.trace.show import plain


@contextmanager
def presumed_sound(reader: TraceReader) -> Iterator[None]:
    """Around work on events alone. If it fails on a trace that is not sound: TraceError with file, line and first
    finding. What failed, which may be a defect of omni all the same, is said behind it and is its cause."""
    try:
        yield
    except (LookupError, OverflowError, ValueError) as error:
        finding = next(iter(check(reader)), None)
        if finding is None:
            raise
        failed = f"(failed: {type(error).__name__}: {plain(str(error))})"
        raise TraceError(f"{reader.path}:{finding.line}: {plain(finding.text)} {failed}") from error
