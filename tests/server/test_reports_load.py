"""Reports of users about a server under load, failures, clients that leave, and its end: each as a test."""

import concurrent.futures
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

import httpx
import pytest

from omni_cli.trace.reader import TraceReader
from omni_cli.trace.summary import summarise
from tests.integration.cli import leaves_nothing, omni, start, wait_for, wait_for_event
from tests.server.serving import INCREMENTAL, Server, serving, since
from tests.server.test_load import gauges, size
from tests.server.test_reports_media import PNG, b64

ENDLESS = {"synthetic": {"never_end": True}}
TEXT = {"modalities": ["text"]}


def raw(server: Server, **body: object) -> socket.socket:
    """A chat call over a bare socket, sent and not yet read."""
    asked = {"messages": [{"role": "user", "content": "one two three"}], **body}
    data = json.dumps(asked).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    client = socket.socket()
    client.settimeout(30)
    if body.get("stream"):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return client


def health(server: Server) -> dict:
    return httpx.get(f"{server.url}/health", timeout=30).json()


def wait_until_idle(server: Server, limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while (found := health(server))["running"] or found["waiting"]:
        assert time.monotonic() < end, found
        time.sleep(0.02)  # nothing tells from outside


def test_r05_out_of_memory_in_the_last_stage_hurts_one_request(server):
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        oom = {"synthetic": {"fail": {"stage": "code2wav", "kind": "oom", "times": 1}}}
        failing = pool.submit(server.chat, **oom)
        others = [pool.submit(server.chat, **more) for more in (TEXT, TEXT)]
        assert failing.result().status_code == 500
        assert "stage code2wav" in failing.result().json()["error"]["message"]
        assert [other.result().status_code for other in others] == [200, 200]
        assert server.chat().status_code == 200
        assert server.process.poll() is None


def test_r08_audio_comes_piece_by_piece_to_the_end(piecewise):
    body = {"messages": [{"role": "user", "content": "hi"}], "modalities": ["audio"], "stream": True}
    slowed = {"synthetic": {"frames": 100, "delay_ms": {"talker": 10}}}
    start_s, arrived = time.monotonic(), []
    with httpx.stream("POST", f"{piecewise.url}/v1/chat/completions", json={**body, **slowed}, timeout=60) as answer:
        for line in answer.iter_lines():
            if '"data":"' in line:
                arrived.append(time.monotonic() - start_s)
    assert len(arrived) >= 4
    assert arrived[0] <= 0.5 * (time.monotonic() - start_s)


def test_r10_a_deadline_ends_a_request_and_frees_its_stages(server):
    started = time.monotonic()
    done = server.chat(**ENDLESS, timeout_s=1)
    assert (done.status_code, done.json()["error"]["code"]) == (504, "timeout")
    assert 1 <= time.monotonic() - started < 10
    streamed = server.chat(**ENDLESS, timeout_s=1, stream=True)
    assert streamed.status_code == 200
    *_, last, end = [line for line in streamed.text.splitlines() if line]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
    assert end == "data: [DONE]"
    assert '"finish_reason":"stop"' not in streamed.text
    assert server.chat().status_code == 200
    wait_until_idle(server)


def test_r10_a_deadline_beyond_the_servers_is_refused(server):
    assert server.chat(timeout_s=601).json()["error"]["param"] == "timeout_s"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_every_stage(server, stream):
    begun_ns = time.monotonic_ns()
    client = raw(server, stream=stream, **ENDLESS)
    since(server, begun_ns, "scheduled", "talker.0")
    (told,) = httpx.get(f"{server.url}/debug/requests", timeout=30).json()["requests"]
    assert told["stages"] == {"thinker.0": "finished", "talker.0": "running"}
    assert "text has ended, but a request ends with the last of its outputs. audio has 0 units so far" in told["why"]
    assert "nothing has come from talker. code2wav takes talker `complete`" in told["why"]
    assert re.search("talker.0 is running it, at unit [0-9]+, last heard of [0-9.]+ (us|ms|s) before", told["why"])
    left_ns = time.monotonic_ns()
    client.close()
    assert since(server, left_ns, "stage_cancelled", "talker.0")["talker.0"] < 2
    wait_until_idle(server)
    assert server.chat().status_code == 200


def test_r19_the_first_signal_drains_and_the_second_ends_it(tmp_path):
    with leaves_nothing(), serving("serve.drain_timeout_s=60", cwd=tmp_path) as server:
        client = raw(server, **ENDLESS)
        wait_for_event(server.run / "trace.jsonl", "scheduled", src="talker.0")
        server.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 10
        while health(server)["status"] != "draining":
            assert time.monotonic() < end
        refused = server.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert "retry-after" in refused.headers
        assert httpx.get(f"{server.url}/health/live").status_code == 200
        assert httpx.get(f"{server.url}/health/ready").status_code == 503
        second = time.monotonic()
        assert server.stop() == 143
        assert time.monotonic() - second < 8
        client.close()


def test_r19_a_drain_has_an_end(tmp_path):
    with leaves_nothing(), serving("serve.drain_timeout_s=1", cwd=tmp_path) as server:
        client = raw(server, stream=True, **ENDLESS)
        wait_for_event(server.run / "trace.jsonl", "scheduled", src="talker.0")
        begun = time.monotonic()
        assert server.stop() == 143
        assert time.monotonic() - begun < 12
        heard = b"".join(iter(lambda: client.recv(65_536), b""))
        assert b'cancelled: the server is shutting down"' in heard
        client.close()


def test_r49_beyond_places_and_queue_everything_is_refused_at_once(tmp_path):
    with (
        serving("serve.max_concurrency=4", "serve.max_queue=8", cwd=tmp_path) as server,
        contextlib.ExitStack() as held,
    ):
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            barrier = threading.Barrier(40)

            def ask(_: int) -> socket.socket:
                barrier.wait(30)
                return held.enter_context(raw(server, **ENDLESS))

            silent = set(pool.map(ask, range(40)))
        refused = []
        while len(refused) < 28:  # none of those who are in will ever be answered
            heard, _, _ = select.select(silent, [], [], 30)
            assert heard, refused
            refused += [client.recv(4096) for client in heard]
            silent -= set(heard)
        assert {answer.split()[1] for answer in refused} == {b"429"}
        assert all(b"retry-after: " in answer.lower() for answer in refused)
        assert (health(server)["running"], health(server)["waiting"]) == (4, 8)
        held.close()
        wait_until_idle(server)
        assert server.chat().status_code == 200


def test_r69_a_port_that_is_taken_is_found_before_anything_is_loaded(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = omni("serve", "recipe=synthetic", f"serve.port={port}", cwd=tmp_path)
    assert ended.code == 2
    assert str(port) in ended.err
    assert "starting" not in ended.err
    assert list(tmp_path.iterdir()) == []


PAIRS = 20 if os.environ.get("OMNI_SOAK") else 1


@pytest.mark.parametrize("pair", range(PAIRS))
def test_r69_two_servers_start_side_by_side_and_of_two_on_one_port_one(tmp_path, pair):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folders = [tmp_path / name for name in ("same", "again", "other")]
    for folder in folders:
        folder.mkdir()
    with leaves_nothing(), contextlib.ExitStack() as held:
        ports = (port, port, 0)
        servers = [
            held.enter_context(killed(start("serve", "recipe=synthetic", f"serve.port={each}", cwd=folder)))
            for each, folder in zip(ports, folders, strict=True)
        ]
        lines = [read_until_listening(server) for server in servers]
        listening = [bool(_LISTENS.search(text)) for text in lines]
        assert sorted(listening[:2]) == [False, True], lines
        assert listening[2], lines
        loser = servers[listening.index(False)]
        assert loser.wait(30) == 2
        assert f"127.0.0.1:{port} cannot be listened on" in lines[listening.index(False)]
        for server, text in zip(servers, lines, strict=True):
            if server is not loser:
                url = _LISTENS.search(text)[0]
                body = {"messages": [{"role": "user", "content": "hi"}]}
                assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200
                server.send_signal(signal.SIGTERM)
                assert server.wait(30) == 143


_LISTENS = re.compile(r"http://127\.0\.0\.1:\d+")


def read_until_listening(process: subprocess.Popen) -> str:
    """What a server says until it listens, or has ended."""
    said = ""
    for line in process.stderr:
        said += line
        if _LISTENS.search(line):
            break
    return said


@contextlib.contextmanager
def killed(process: subprocess.Popen) -> Iterator[subprocess.Popen]:
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_r90_health_says_starting_before_it_is_ready(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = (f"serve.port={port}", "synthetic.init_delay_s.talker=1")
    process = start("serve", "recipe=synthetic", *words, cwd=tmp_path)
    try:
        answers, live = [], set()
        end = time.monotonic() + 60
        while (not answers or answers[-1] != 200) and time.monotonic() < end:
            try:
                live.add(httpx.get(f"http://127.0.0.1:{port}/health/live", timeout=10).status_code)
                answers.append(httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=10).status_code)
            except httpx.TransportError:
                continue  # not bound yet
        assert set(answers) == {503, 200}
        assert live == {200}
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    finally:
        process.kill()
        process.communicate()


def test_r90_health_answers_at_once_while_every_stage_is_busy(server):
    clients = [raw(server, stream=True, synthetic={"never_end": True, "delay_ms": {"talker": 20}}) for _ in range(4)]
    try:
        for client in clients:
            assert client.recv(4096)
        with httpx.Client(base_url=server.url) as http:
            for path in ("/health", "/health/live", "/health/ready", "/v1/models", "/metrics"):
                for method in ("GET", "HEAD"):
                    answers = [http.request(method, path) for _ in range(3)]
                    assert {answer.status_code for answer in answers} == {200}
                    assert min(answer.elapsed.total_seconds() for answer in answers) < 0.5
            assert http.get("/health").json()["running"] == len(clients)
    finally:
        for client in clients:
            client.close()
    wait_until_idle(server)


def test_r95_one_slow_reader_is_dropped_and_hurts_nobody(tmp_path):
    # Most of their time is sleep, so that the figures are of the server and not of a busy machine.
    paced = {"frames": 8, "delay_ms": {"thinker": 100, "talker": 5}}
    words = ("serve.max_buffered_bytes=1048576", *INCREMENTAL)
    with serving(*words, cwd=tmp_path) as server, concurrent.futures.ThreadPoolExecutor(4) as pool:

        def four_s() -> float:
            begun = time.monotonic()
            done = pool.map(lambda seed: server.chat(seed=seed, synthetic=paced), range(4))
            assert {answer.status_code for answer in done} == {200}
            return time.monotonic() - begun

        def resident() -> int:
            return size(server.process.pid)[0]

        four_s()
        solo_s = min(four_s() for _ in range(3))
        before, trace = resident(), server.run / "trace.jsonl"
        slowly = {**paced, "frames": 2000, "delay_ms": {"talker": 10}}
        slow = raw(server, stream=True, modalities=["audio"], synthetic=slowly)  # 10 MB
        assert slow.recv(1)
        wait_for_event(trace, "output_produced", uid=17)  # four at a time came before it, four times
        beside_s = []
        while "bytes unread" not in server.log:  # it was there all the time, but for the last one's
            beside_s.append(four_s())
        wait_for_event(trace, "request_cancelled", uid=17)
        assert resident() - before <= 20 << 20
        assert re.search(r"\d+ bytes unread, the client is dropped", server.log)
        print(f"alone {solo_s:.3f} s, beside a slow reader {beside_s} s")
        assert min(beside_s[:-1]) <= (1.2 if os.environ.get("OMNI_SOAK") else 2) * solo_s
        slow.close()
        wait_until_idle(server)


def test_the_metrics_are_the_traces_numbers(tmp_path):
    look = {"type": "image_url", "image_url": {"url": f"data:;base64,{b64(PNG)}"}}
    with serving(*INCREMENTAL, cwd=tmp_path) as server:
        for number in range(3):
            assert server.chat(f"number {number}", synthetic={"frames": 40}).status_code == 200
        assert server.chat([look, {"type": "text", "text": "look"}]).status_code == 200
        server.chat(synthetic={"fail": {"stage": "talker"}})
        assert server.chat(**ENDLESS, timeout_s=0.5).status_code == 504
        wait_until_idle(server)
        wait_for(lambda: not any(gauges(server).values()), "an idle server")
        text = httpx.get(f"{server.url}/metrics").text
        assert server.stop() == 143
    run = summarise(TraceReader(server.run / "trace.jsonl"))
    requests = list(run.requests.values())
    steps = [event for event in server.events if event["kind"] == "step_done"]
    expected = defaultdict(float)

    def observe(name: str, labels: str, seconds: float, count: int = 1) -> None:
        expected[f"omni_{name}_sum{labels}"] += seconds
        expected[f"omni_{name}_count{labels}"] += count

    for step in steps:
        process = f'{{process="{step["src"]}"}}'
        expected[f"omni_stage_steps_total{process}"] += 1
        expected[f"omni_stage_units_total{process}"] += sum(row["units"] for row in step["rows"])
        expected[f"omni_stage_busy_seconds_total{process}"] += (step["end_ns"] - step["t"]) / 1e9
        expected[f"omni_process_up{process}"] = 1
        expected[f"omni_process_restarts_total{process}"] = 0
    for request in requests:
        outcome = f'{{outcome="{request.status}"}}'
        expected[f"omni_requests_total{outcome}"] += 1
        observe("request_seconds", outcome, request.total_ns / 1e9)
        for name, first_ns in (("ttft_seconds", request.ttft_ns), ("ttfa_seconds", request.ttfa_ns)):
            if first_ns is not None:
                observe(name, "", first_ns / 1e9)
        rtf = request.rtf(request.outputs["audio"]) if request.status == "finished" else None
        if rtf is not None:
            observe("rtf", "", rtf)
        for edge in request.edges.values():
            labels = f'{{consumer="{edge.consumer}",producer="{edge.producer}"}}'
            expected[f"omni_hand_off_bytes_total{labels}"] += edge.nbytes
            observe("hand_off_seconds", labels, edge.hand_off_ns / 1e9, edge.got)
    assert {request.status for request in requests} == {"finished", "failed"}
    found = {name: float(value) for name, value in re.findall(r"^(omni\S+) (\S+)$", text, re.MULTILINE)}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    counted = ("_count", "_sum", "_total")
    assert {name for name in found if name.partition("{")[0].endswith(counted)} - expected.keys() == {
        "omni_output_gap_seconds_count", "omni_output_gap_seconds_sum"
    }  # fmt: skip
