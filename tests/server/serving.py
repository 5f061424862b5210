"""Starts `omni serve` as a user does, in a process of its own, and ends it."""

import json
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.integration.cli import check_trace, read_events, start, wait_for

INCREMENTAL = (
    "pipeline.stages.talker.inputs.thinker=incremental",
    "pipeline.stages.code2wav.inputs.talker=incremental",
)
_LISTENS = re.compile(r"http://127\.0\.0\.1:(\d+)")


@dataclass
class Server:
    """A server that is ready. `lines` are what it has said so far."""

    process: subprocess.Popen
    cwd: Path
    port: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return "".join(self.lines)

    @property
    def run(self) -> Path:
        (found,) = self.cwd.glob("outputs/**/trace.jsonl")
        return found.parent

    def took_on(self) -> float:
        """How many requests have come to a stage, and ended, so far."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        return sum(map(float, re.findall(r"^omni_requests_total\{.*\} (\S+)$", text, re.MULTILINE)))

    @property
    def events(self) -> list[dict]:
        """Of a server that has ended."""
        return read_events(self.run / "trace.jsonl")

    def read_on(self) -> None:
        assert self.process.stderr is not None
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def stop(self, number: int = signal.SIGTERM, limit_s: float = 30) -> int:
        self.process.send_signal(number)
        return self.ended(limit_s)

    def ended(self, limit_s: float = 30) -> int:
        code = self.process.wait(limit_s)
        self.reader.join(limit_s)
        return code

    def chat(self, text: str = "hello there", limit_s: float = 60, **body: object) -> httpx.Response:
        asked = {"messages": [{"role": "user", "content": text}], **body}
        return httpx.post(f"{self.url}/v1/chat/completions", json=asked, timeout=limit_s)


@contextmanager
def serving(*words: str, cwd: Path, clean: bool = True) -> Iterator[Server]:
    """A server on a free port, of the synthetic recipe unless another is named.

    If `clean`, its log has no traceback and its trace no fault.
    """
    recipe = () if any(word.startswith("recipe=") for word in words) else ("recipe=synthetic",)
    process = start("serve", *recipe, "serve.port=0", *words, cwd=cwd)
    server = Server(process=process, cwd=cwd)
    try:
        for line in process.stderr:
            server.lines.append(line)
            if found := _LISTENS.search(line):
                server.port = int(found[1])
                break
        assert server.port, server.log
        server.read_on()
        yield server
        if process.poll() is None:
            assert server.stop() == 143, server.log
        if clean:
            assert "Traceback" not in server.log, server.log
            check_trace(server.run)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def says(server: Server, *parts: dict, status: int = 200, **more: object) -> str:
    """The text that answers these parts, or the message of the error."""
    messages = [{"role": "user", "content": list(parts)}]
    body = {"messages": messages, "modalities": ["text"], **more}
    done = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert done.status_code == status, done.text
    return done.json()["choices"][0]["message"]["content"] if status == 200 else done.json()["error"]["message"]


def refused(server: Server, status: int = 400, path: str = "/v1/chat/completions", **body: object) -> dict:
    done = httpx.post(f"{server.url}{path}", json=body, timeout=60)
    assert done.status_code == status, done.text
    error = done.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def since(server: Server, ns: int, kind: str, *sources: str) -> dict[str, float]:
    """By process or stage, how long after `ns` the events of a kind have come, s; of all `sources` at least."""

    def look() -> dict[str, float]:
        lines = (server.run / "trace.jsonl").read_text(encoding="utf-8").splitlines()
        events = [json.loads(line) for line in lines if f'"{kind}"' in line and line.endswith("}")]
        found = {e.get("stage", e["src"]): (e["t"] - ns) / 1e9 for e in events if e["kind"] == kind and e["t"] > ns}
        return found if found.keys() >= set(sources) else {}

    return wait_for(look, f"{kind} of {sources}")
