"""What a trace that is not sound breaks, in the words of `omni trace check`. Must not look at sound ones."""

from collections.abc import Iterator
from contextlib import contextmanager

from omni_cli.errors import TraceError
from omni_cli.trace.check import check
from omni_cli.trace.reader import TraceReader
from omni_cli.trace.show import plain


@contextmanager
def explained(reader: TraceReader) -> Iterator[None]:
    """Around work that takes a trace to be sound. TraceError with file, line and the first finding if it is not."""
    try:
        yield
    except (ArithmeticError, LookupError, ValueError) as error:
        finding = next(iter(check(reader)), None)
        if finding is None:
            raise
        raise TraceError(f"{reader.path}:{finding.line}: {plain(finding.text)}") from error
