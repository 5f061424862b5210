"""The page at / in a headless Chromium: what a user does with it, and that it speaks with this server alone."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

from omni_cli.runtime.events import RequestAdmitted, RequestFinished, StageSubmitted
from omni_cli.server.timelines import Timelines
from stages.events import StageFinished
from tests.integration.cli import wait_for
from tests.server.chromium import Page, chromium
from tests.server.serving import Server, serving
from tests.server.test_doors import app, ask
from tests.server.test_reports_load import INCREMENTAL, wait_until_idle
from tests.unit.omni_cli.inputs.media_samples import picture

KEY = "a key for the page"
REFUSED = "Failed to load resource: the server responded with a status of 40"
"""What the browser itself says of the two calls that the server refuses here."""
WATCH = """
var seen = [];
new MutationObserver(() => {
    const answer = document.querySelector(".answer");
    if (answer) seen.push([answer.children[0].textContent.length, Number(answer.dataset.samples ?? 0),
        answer.querySelectorAll(".works").length, Boolean(answer.dataset.end)]);
}).observe($("log"), { subtree: true, childList: true, attributes: true });
"""
HEARD = """new Promise((heard) => {
    let bytes = 0;
    recorder.addEventListener("dataavailable", ({ data }) => {
        bytes += data.size;
        if (bytes > 2000) heard(); else recorder.requestData();
    });
    recorder.requestData();
})"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    slow = ("synthetic.delay_ms.thinker=80", "synthetic.delay_ms.talker=10")
    with serving(*INCREMENTAL, *slow, f"serve.api_keys=[{KEY}]", cwd=tmp_path_factory.mktemp("server")) as one:
        yield one


@pytest.fixture(scope="module")
def page(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Opened without a key, which is then typed in; at the end, what it has said and asked for is judged."""
    with chromium(tmp_path_factory.mktemp("profile")) as one:
        one.open(server.url)
        assert "needs an API key" in one.until("!document.querySelector('#error').hidden && $('error').textContent")
        assert one.run("!$('key').hidden && document.querySelector('#model').textContent") == "…"
        one.run(f"$('key').value = '{KEY}'; $('key').onchange()")
        one.until("$('model').textContent === 'synthetic' && $('error').hidden")
        yield one
        assert [line for line in one.said if not line.startswith(REFUSED)] == []
        assert {url for url in one.asked if not url.startswith((f"{server.url}/", "data:", "blob:"))} == set()


@pytest.fixture(autouse=True)
def _new_conversation(request: pytest.FixtureRequest) -> None:
    if "page" in request.fixturenames:
        request.getfixturevalue("page").run("$('new').click()")


def send(page: Page, text: str) -> None:
    page.run(f"$('prompt').value = {text!r}; $('send').click()")


def answered(page: Page, number: int = 0) -> dict[str, Any]:
    """An answer that is over."""
    page.until(f"document.querySelectorAll('.answer')[{number}]?.dataset.end")
    shown = """(({dataset, children}) => ({
        ...dataset, text: children[0].textContent, stages: children[1].dataset.status,
        lanes: [...children[1].querySelectorAll('.count:not(:empty)')].map((count) => count.textContent)}))"""
    found: dict[str, Any] = page.run(f"{shown}(document.querySelectorAll('.answer')[{number}])")
    return found


def test_text_and_sound_are_there_while_they_are_made(page):
    page.run(WATCH)
    send(page, "one two three four five six seven eight")
    done = answered(page)
    assert (done["text"], done["stages"]) == ("one two three four five six seven eight", "finished")
    assert done["end"].startswith("stop after")
    assert int(done["samples"]) == 8 * 3 * 1920
    seen = page.run("seen")
    texts, samples = ([state[i] for state in seen if not state[3]] for i in range(2))
    assert texts == sorted(texts)
    assert len(set(texts)) > 2
    assert len(set(samples)) > 2
    assert any(bars for _, _, bars, over in seen if not over)
    assert [lane.split(" units")[0] for lane in done["lanes"]] == ["8", "24", "24"]
    assert page.run("document.querySelector('.answer audio').src.startsWith('blob:')")


def test_stop_ends_it_in_every_stage(page, server):
    send(page, "word " * 300)
    page.until("document.querySelector('.answer')?.dataset.samples > 0")
    page.run("$('stop').click()")
    done = answered(page)
    assert (done["end"], done["stages"]) == ("stopped", "cancelled")
    assert 0 < len(done["text"].split()) < 300
    assert page.run("player.context.state") == "closed"
    wait_until_idle(server)


def test_a_picture_and_a_voice_reach_the_model(page, server, tmp_path):
    """The synthetic thinker says the digest of what it was shown: it is that of the file."""
    data = picture(Image.new("RGB", (24, 16), (200, 30, 60)))
    (tmp_path / "photo.png").write_bytes(data)
    page.choose("#file", tmp_path / "photo.png")
    assert page.until("picture && $('attached').textContent") == "Picture ✕"
    send(page, "what is it")
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is it"}]
    body = {"messages": [{"role": "user", "content": parts}], "modalities": ["text"]}
    headers = {"Authorization": f"Bearer {KEY}"}
    direct = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60).json()
    assert answered(page)["text"] == direct["choices"][0]["message"]["content"]
    page.run("$('speak').click()")
    page.until("recorder?.state === 'recording'")
    page.run(HEARD)
    page.run("$('speak').click()")
    assert page.until("recording && $('attached').textContent") == "Recording ✕"
    page.run("document.querySelector('[value=audio]').click(); $('send').click()")
    spoken = answered(page, 1)
    page.run("document.querySelector('[value=audio]').click()")
    assert spoken["text"].startswith("[audio:")
    assert (spoken["samples"], len(spoken["lanes"])) == ("0", 1)


def test_what_the_server_refuses_is_shown(page):
    page.run("for (const box of document.querySelectorAll('#outputs input')) box.click()")
    send(page, "nothing at all")
    assert "modalities" in page.until("!$('error').hidden && $('error').textContent")
    page.run("for (const box of document.querySelectorAll('#outputs input')) box.click()")
    assert answered(page)["end"] == "failed"


def test_the_bars_are_the_trace(page, server):
    send(page, "again")
    answered(page)
    request = [url for url in page.asked if url.endswith("/timeline")][-1]
    shown = httpx.get(request, headers={"Authorization": f"Bearer {KEY}"}, timeout=60).json()
    name = request.split("/")[-2]

    def traced() -> list[dict]:
        lines = (server.run / "trace.jsonl").read_text(encoding="utf-8").splitlines()
        events = [json.loads(line) for line in lines if line.endswith("}")]
        uid = next((event["uid"] for event in events if event.get("request_id") == name), None)
        own = [event for event in events if event.get("uid") == uid]
        return own if any(event["kind"] == "request_finished" for event in own) else []

    events = wait_for(traced, f"the end of {name}")
    admitted = events[0]["t"]
    for lane in shown["stages"]:
        process = f"{lane['stage']}.0"
        first = next(e["t"] for e in events if e["kind"] == "scheduled" and e["src"] == process)
        last = next(e["t"] for e in events if e["kind"] == "stage_finished" and e["src"] == process)
        assert lane["started_ms"] == round((first - admitted) / 1e6, 3)
        assert lane["ended_ms"] == round((last - admitted) / 1e6, 3)
        assert 0 <= lane["submitted_ms"] <= lane["started_ms"] <= lane["ended_ms"] <= shown["elapsed_ms"]


def test_the_page_runs_only_what_it_holds():
    shown = ask(app(keys=(KEY,)), "GET", "/")
    policy = shown.headers["content-security-policy"]
    assert (shown.status_code, "unsafe" in policy) == (200, False)
    assert "default-src 'none'" in policy
    assert "://" not in shown.text


def test_a_timeline_is_guarded_and_not_kept_for_ever():
    assert ask(app(keys=(KEY,)), "GET", "/v1/requests/none-0/timeline").status_code == 401
    assert ask(app(), "GET", "/v1/requests/none-0/timeline").json()["error"]["code"] == "request_not_found"
    timelines = Timelines(keep=1)
    for uid in range(3):
        timelines("omni", RequestAdmitted(t_ns=5, uid=uid, request_id=f"r{uid}", seed=1, outputs=("text",),
                                          stages=("thinker",), timeout_s=None))  # fmt: skip
        timelines("omni", StageSubmitted(t_ns=6, uid=uid, stage="thinker", process="thinker.0", waits_for=()))
        timelines("thinker.0", StageFinished(uid=0, t_ns=7, reason="stop", units=1))
    timelines("omni", RequestFinished(uid=1, t_ns=8))
    for left in ("r1", "r2", "never admitted"):
        timelines.leave(left)
    assert [timelines.of(f"r{uid}") is not None for uid in range(3)] == [True, False, True]  # r0 was not left
    view = timelines.of("r2").view(1_000_005)
    assert (view["status"], view["elapsed_ms"], view["stages"][0]["ended_ms"]) == ("running", 1.0, None)
