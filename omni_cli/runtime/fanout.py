"""One event to every listener. A listener that raises is logged and not called again; it can never break a run."""

import logging

from omni_cli.runtime.events import Event, Listener

log = logging.getLogger("omni.runtime")


class Fanout:
    """Itself a listener, over any number of them, in their order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def __call__(self, source: str, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(source, event)
            except Exception:
                log.exception("a listener failed and is not called again: %r", listener)
                self._listeners = tuple(other for other in self._listeners if other is not listener)
