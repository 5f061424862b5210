"""One point of view on a trace. It yields what cannot be right, as a person would say it."""

from collections.abc import Iterator

from omni_cli.trace.codec import TraceEvent


class Audit:
    """What an audit is told of, in the order of the lines. One that keeps nothing by request has nothing to forget."""

    def see(self, line: TraceEvent) -> Iterator[str]:
        """The next event, before the tables have taken it in."""
        raise NotImplementedError

    def forget(self, uid: int) -> None:
        """The request is over: it has ended for its caller and in every stage."""

    def end(self) -> Iterator[str]:
        """What is missing at the end of a whole trace."""
        return iter(())
