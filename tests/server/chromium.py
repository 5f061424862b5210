"""A headless Chromium, driven by its own protocol over a WebSocket: no driver, no package for it.

https://chromedevtools.github.io/devtools-protocol/
"""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.integration.cli import wait_for

LIMIT_S = 60
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", "--window-size=900,900",
)  # fmt: skip


class Page:
    """One tab. `said` is what its console has said, `asked` every URL that it has asked for."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._last = 0
        self.said: list[str] = []
        self.asked: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.do(f"{domain}.enable")

    def do(self, method: str, **params: object) -> dict[str, Any]:
        """One command; what the page reports meanwhile is noted."""
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": params}))
        while (message := json.loads(self._socket.recv(LIMIT_S))).get("id") != self._last:
            self._note(message["method"], message["params"])
        assert "error" not in message, (method, message)
        found: dict[str, Any] = message["result"]
        return found

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif method == "Log.entryAdded":
            self.said.append(params["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.said.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.said.append(json.dumps(params["args"]))

    def run(self, script: str) -> Any:
        """The value of an expression, as if a user had caused it."""
        done = self.do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def open(self, url: str) -> None:
        self.do("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def until(self, script: str) -> Any:
        """The value of an expression as soon as it is true."""
        return wait_for(lambda: self.run(script), script, LIMIT_S)

    def choose(self, selector: str, file: Path) -> None:
        """A file, as the dialogue of an <input> would give it."""
        root = self.do("DOM.getDocument")["root"]["nodeId"]
        node = self.do("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.do("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def picture(self) -> bytes:
        return base64.b64decode(self.do("Page.captureScreenshot", format="png")["data"])


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """A browser with a new profile, and its only tab."""
    binary = shutil.which("chromium")
    assert binary is not None, "the playground is tested in Chromium, which is missing: apt-get install chromium"
    words = [binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ready = profile / "DevToolsActivePort"
        text = wait_for(lambda: ready.exists() and ready.read_text(encoding="ascii"), "Chromium", LIMIT_S)
        port = text.split("\n")[0]
        tabs = wait_for(
            lambda: [tab for tab in httpx.get(f"http://127.0.0.1:{port}/json").json() if tab["type"] == "page"], "a tab"
        )
        with connect(tabs[0]["webSocketDebuggerUrl"], max_size=None, proxy=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
