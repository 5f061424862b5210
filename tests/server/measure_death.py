"""How soon after a stage's SIGKILL its request and `/health` say so: `python -m tests.server.measure_death [ROUNDS]`.

One server, whose talker and code2wav are killed in turn and started again; each time a client hears the sound that they
make, and another asks `/health` again and again. It asserts nothing: tests/server/test_overload.py does.
"""

import concurrent.futures
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.integration.cli import read_events, wait_for
from tests.server.serving import INCREMENTAL, Server, serving

STAGES = ("talker", "code2wav")
ASKED = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "synthetic": {"never_end": True}}


def words() -> Iterator[str]:
    yield from INCREMENTAL
    yield "synthetic.delay_ms.talker=20"
    for stage in STAGES:  # started again at once, however often
        yield from (f"deploy.stages.{stage}.restarts=1000", f"deploy.stages.{stage}.restart_window_s=0.001")


def state(client: httpx.Client, stage: str) -> str:
    return client.get("/health").json()["stages"][stage][f"{stage}.0"]["state"]


def when_told(client: httpx.Client, stage: str) -> float:
    """When an answer of `/health` had the stage in another state than ready."""
    while state(client, stage) == "ready":
        pass
    return time.monotonic()


def kill(server: Server, stage: str) -> tuple[float, float]:
    """Seconds until the request has its error, and until `/health` says so."""
    with (
        httpx.Client(base_url=server.url, timeout=60) as health,
        httpx.Client(base_url=server.url, timeout=60) as client,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        wait_for(lambda: state(health, stage) == "ready", f"a ready {stage}")
        ready = [e for e in read_events(server.run / "trace.jsonl") if e["kind"] == "process_ready"]
        pid = [event["pid"] for event in ready if event["src"] == f"{stage}.0"][-1]
        with client.stream("POST", "/v1/chat/completions", json=ASKED) as answer:
            lines = answer.iter_lines()
            next(line for line in lines if '"data":"' in line)  # sound: it is in every stage but the first
            told = pool.submit(when_told, health, stage)
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            next(line for line in lines if '"error"' in line)
            heard = time.monotonic()
        return heard - killed, told.result() - killed


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder, serving(*words(), cwd=Path(folder), clean=False) as server:
        found = [kill(server, STAGES[number % len(STAGES)]) for number in range(rounds)]
    for name, seconds in zip(("the request", "/health"), zip(*found, strict=True), strict=True):
        print(f"{name}: median {statistics.median(seconds) * 1e3:.0f} ms, at most {max(seconds) * 1e3:.0f} ms")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ["20"]))
