"""What a server says when something of it is full or dead: a stage, its descriptors, a stage's process."""

import concurrent.futures
import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.cli import wait_for, wait_for_event
from tests.server.serving import Server, serving
from tests.server.test_reports_load import ENDLESS, TEXT, raw, wait_until_idle


@pytest.fixture(scope="module")
def full_talker(tmp_path_factory) -> Iterator[Server]:
    """Its talker takes one request, and none may wait for it. What is killed of it stays dead."""
    words = [f"deploy.stages.talker.{word}" for word in ("max_batch=1", "max_queue=0", "restarts=0", "retry=0")]
    with serving(*words, cwd=tmp_path_factory.mktemp("full")) as server:
        yield server


def test_r49_a_stage_that_is_full_refuses_with_429_and_names_its_key(full_talker):
    with raw(full_talker, **ENDLESS):
        wait_for_event(full_talker.run / "trace.jsonl", "scheduled", src="talker.0")
        refused = full_talker.chat()
    assert refused.status_code == 429
    assert refused.headers["retry-after"]
    assert refused.json()["error"]["code"] == "overloaded"
    assert "deploy.stages.talker.max_queue" in refused.json()["error"]["message"]
    wait_until_idle(full_talker)
    assert full_talker.chat().status_code == 200


def test_without_descriptors_a_connection_waits_and_the_log_says_what_helps(full_talker):
    pid, hello = full_talker.process.pid, {"messages": [{"role": "user", "content": "hello"}]}
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as held:
        held.callback(resource.prlimit, pid, resource.RLIMIT_NOFILE, limits)
        first = held.enter_context(httpx.Client(base_url=full_talker.url, timeout=30))
        assert first.get("/health/live").status_code == 200
        used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        lowest = min(set(range(len(used) + 1)) - used)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest + 2, limits[1]))
        address = ("127.0.0.1", full_talker.port)
        clients = [held.enter_context(socket.create_connection(address)) for _ in range(3)]
        wait_for(lambda: "a new connection has to wait: Too many open files" in full_talker.log, "the warning")
        assert "raise `ulimit -n`" in full_talker.log
        assert first.post("/v1/chat/completions", json=hello).status_code == 200, "who is in goes on"
        for client in clients:
            client.close()
        assert full_talker.chat().status_code == 200


def test_a_dead_stage_is_named_and_the_server_says_that_it_is_unhealthy(tmp_path):
    with serving("deploy.stages.talker.restarts=0", cwd=tmp_path, clean=False) as server:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            dying = pool.submit(server.chat, **ENDLESS)
            wait_for_event(server.run / "trace.jsonl", "scheduled", src="talker.0")
            talker = wait_for_event(server.run / "trace.jsonl", "process_ready", src="talker.0")
            killed = time.monotonic()
            os.kill(talker["pid"], signal.SIGKILL)
            died = dying.result()
            heard = time.monotonic() - killed
            found = httpx.get(f"{server.url}/health")
        assert (heard < 3, time.monotonic() - killed < 6) == (True, True)  # 1 s and 2 s, with patience
        assert died.status_code == 503
        assert "talker" in died.json()["error"]["message"]
        assert found.status_code == 503
        assert found.json()["status"] == "unhealthy"
        assert found.json()["stages"]["talker"]["talker.0"]["state"] == "dead"
        assert found.json()["stages"]["thinker"]["thinker.0"]["state"] == "ready"
        assert httpx.get(f"{server.url}/health/live").status_code == 200
        after = server.chat()
        assert after.status_code == 503
        assert "talker" in after.json()["error"]["message"]
        assert server.chat(**TEXT).status_code == 200
        assert 'omni_process_up{process="talker.0"} 0.0' in httpx.get(f"{server.url}/metrics").text
