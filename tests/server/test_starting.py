"""What is said and refused before any stage is there."""

import contextlib
import errno
import os
import socket
import time

import pytest

from omni_cli.errors import PlanError
from omni_cli.server import starting
from omni_cli.server.process import serve_once
from omni_cli.server.starting import Starting


def test_who_says_nothing_holds_up_no_health_check():
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        Starting(listening),
        socket.create_connection(listening.getsockname()) as silent,
    ):
        for path, status in (("/health/live", b"200"), ("/health", b"503")):
            with socket.create_connection(listening.getsockname(), timeout=30) as client:
                client.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
                assert client.recv(4096).startswith(b"HTTP/1.1 " + status)
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):  # it is still listened to
            silent.recv(1)


class _Full(socket.socket):
    """No descriptor is left for a connection, until a tenth of a second after the first was asked for."""

    free_at, tries = 0.0, 0

    def accept(self):
        self.tries += 1
        self.free_at = self.free_at or time.monotonic() + 0.1
        if time.monotonic() < self.free_at:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_without_descriptors_a_connection_waits_and_the_log_says_what_helps(caplog, monkeypatch):
    monkeypatch.setattr("omni_cli.server.starting.ACCEPT_AGAIN_S", 0.2)
    with (
        _Full(fileno=socket.create_server(("127.0.0.1", 0)).detach()) as listening,
        Starting(listening),
        socket.create_connection(listening.getsockname(), timeout=30) as client,
    ):
        client.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 503")
        assert listening.tries == 2
    (said,) = caplog.messages
    assert "a new connection has to wait: Too many open files" in said
    assert "raise `ulimit -n`" in said


class _Counting(socket.socket):
    """How many connections had a descriptor at once."""

    most = 0

    def accept(self):
        client, address = super().accept()
        self.clients = [c for c in (*getattr(self, "clients", ()), client) if c.fileno() >= 0]
        self.most = max(self.most, len(self.clients))
        return client, address


def test_a_crowd_that_says_nothing_takes_no_descriptors_from_the_stages(monkeypatch):
    monkeypatch.setattr(starting, "_AT_ONCE", 2)
    monkeypatch.setattr(starting, "_PATIENCE_S", 0.05)
    with (
        contextlib.ExitStack() as crowd,
        _Counting(fileno=socket.create_server(("127.0.0.1", 0)).detach()) as listening,
        Starting(listening),
    ):
        for _ in range(6):
            crowd.enter_context(socket.create_connection(listening.getsockname()))
        with socket.create_connection(listening.getsockname(), timeout=30) as client:
            client.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 503")
        assert listening.most <= 2


def test_a_recipe_that_no_route_serves_is_refused_with_the_way_out():
    with pytest.raises(PlanError, match=r"pipeline wan gives video, .* `omni run recipe=wan`"):
        serve_once(("recipe=wan",), quiet=True)
