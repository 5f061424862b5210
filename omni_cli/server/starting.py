"""Answers 503 on the public port while the stages load, so that a health check hears `starting` and not silence; but
`/health/live` with 200, or whoever asks would end a server that is loading."""

import contextlib
import errno
import json
import logging
import re
import selectors
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

from omni_cli.errors import reason

log = logging.getLogger("omni.server")

NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
ACCEPT_AGAIN_S = 1.0  # asyncio's own pause where no descriptor is left for a connection
HAS_TO_WAIT = "a new connection has to wait: %s"
_BODY = json.dumps(
    {"status": "starting", "error": {"message": "the server is starting", "type": "server_error", "param": None,
                                     "code": "starting"}}
).encode()  # fmt: skip
_HEAD = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\n%bConnection: close\r\nContent-Length: %d\r\n\r\n"
_ANSWER = _HEAD % (b"503 Service Unavailable", b"Retry-After: 1\r\n", len(_BODY)) + _BODY
_ALIVE_BODY = json.dumps({"status": "alive"}).encode()
_ALIVE = _HEAD % (b"200 OK", b"", len(_ALIVE_BODY)) + _ALIVE_BODY
_LIVE = re.compile(rb"(GET|HEAD) /health/live[ ?]")
_PATIENCE_S = 2.0
_AT_ONCE = 32  # connections: who says nothing holds up nobody else. More wait unaccepted, and take no descriptor


class Starting:
    """A thread that answers every connection until the context is left; then the socket is uvicorn's."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._stop, self._stopped = socket.socketpair()
        self._stopped.settimeout(ACCEPT_AGAIN_S)
        self._places = threading.Semaphore(_AT_ONCE)
        self._thread = threading.Thread(target=self._answer_all, name="omni:starting", daemon=True)

    def __enter__(self) -> "Starting":
        self._listening.setblocking(False)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.close()
        self._places.release()
        self._thread.join()
        self._stopped.close()

    def _answer_all(self) -> None:
        answering = ThreadPoolExecutor(_AT_ONCE, "omni:starting")
        with selectors.DefaultSelector() as ready:
            ready.register(self._listening, selectors.EVENT_READ)
            ready.register(self._stopped, selectors.EVENT_READ)
            while self._places.acquire():
                if any(key.fileobj is self._stopped for key, _ in ready.select()):
                    answering.shutdown(wait=False, cancel_futures=True)  # who is listened to is still answered
                    return
                try:
                    client, _ = self._listening.accept()
                except OSError as error:
                    self._places.release()
                    if error.errno in NO_DESCRIPTOR:
                        log.warning(HAS_TO_WAIT, reason(error))
                        with contextlib.suppress(TimeoutError):
                            self._stopped.recv(1)
                    continue  # otherwise the client has left already
                answering.submit(_answer, client).add_done_callback(lambda _: self._places.release())


def _answer(client: socket.socket) -> None:
    with client:
        client.settimeout(_PATIENCE_S)
        try:
            asked = client.recv(65_536)  # a client that is answered before it has spoken sees a reset
            client.sendall(_ALIVE if _LIVE.match(asked) else _ANSWER)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            return
