"""One event to every listener. A listener that raises is logged and not called again; it can never break a run."""

import logging

from omni_cli.runtime.events import Event, Listener

log = logging.getLogger("omni.runtime")


def fanout(*listeners: Listener) -> Listener:
    """Itself a listener, over any number of them, in their order. No object that can be called, and better over none:
    each takes 0.1 us more an event."""

    def hear(source: str, event: Event) -> None:
        nonlocal listeners
        for listener in listeners:
            try:
                listener(source, event)
            except Exception:
                log.exception("a listener failed and is not called again: %r", listener)
                listeners = tuple(other for other in listeners if other is not listener)

    return hear
