"""Who is let in and how much may be sent: the server without stages, in this process."""

import asyncio
import base64
from collections.abc import AsyncGenerator
from functools import cache
from typing import ClassVar

import httpx
import pytest
from fastapi import FastAPI

from omni_cli.config.load import LoadedConfig, load_config
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.fanout import fanout
from omni_cli.runtime.leases import LeaseLedger
from omni_cli.runtime.replicas import Replica, Replicas
from omni_cli.runtime.request import OmniRequest, OutputChunk
from omni_cli.server.admission import Admission
from omni_cli.server.app import create_app
from omni_cli.server.errors import ApiError
from omni_cli.server.metrics import Metrics
from omni_cli.server.service import Service
from omni_cli.server.timelines import Timelines
from tests.integration.cli import ROOT
from tests.unit.omni_cli.inputs.media_samples import sound, tone


class EchoEngine:
    """Says the prompt again, in one piece; raises what it was given instead."""

    def __init__(self, error: Exception | None = None) -> None:
        self.replicas: tuple[Replica, ...] = ()
        self.error = error
        self.failure: Exception | None = None
        self.seen: list[OmniRequest] = []

    def check(self, request: OmniRequest) -> None:
        self.seen.append(request)

    async def generate(self, request: OmniRequest) -> AsyncGenerator[OutputChunk, None]:
        if self.error is not None:
            raise self.error
        text = request.conversation[-1].parts[-1].text
        yield OutputChunk(modality="text", seq=0, units=1, eos=True, text=text, reason="stop")


@cache
def planned(*words: str) -> tuple[LoadedConfig, ExecutionPlan]:
    """Frozen, so that all applications may share it."""
    loaded = load_config(words)
    return loaded, build_plan(loaded, Inventory(devices=()))


def app(*words: str, keys: tuple[str, ...] = (), error: Exception | None = None, recipe: str = "synthetic") -> FastAPI:
    loaded, plan = planned(f"recipe={recipe}", *words)
    service = Service(
        name="synthetic", loaded=loaded, plan=plan, engine=EchoEngine(error), admission=Admission(4, 4),
        metrics=Metrics(), timelines=Timelines(entries=frozenset({"thinker"})),
        max_buffered_bytes=1 << 20,
    )  # fmt: skip
    return create_app(service, loaded.config.serve, keys)


def ask(application: object, method: str, path: str, **more: object) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=application, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://omni") as client:
            return await client.request(method, path, **more)

    return asyncio.run(send())


CHAT = {"messages": [{"role": "user", "content": "hi"}], "modalities": ["text"]}
PATH = "/v1/chat/completions"


def test_without_keys_everybody_is_let_in():
    done = ask(app(), "POST", PATH, json=CHAT)
    assert done.json()["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize(
    "header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}, {"Authorization": "Bearer "}]
)
def test_without_a_key_that_is_known_nobody_is_let_in(header):
    done = ask(app(keys=("secret", "other")), "POST", PATH, json=CHAT, headers=header)
    assert (done.status_code, done.json()["error"]["code"]) == (401, "invalid_api_key")
    assert done.headers["www-authenticate"] == "Bearer"


def test_a_route_that_is_off_names_its_key():
    done = ask(app(), "GET", "/debug/requests")
    assert (done.status_code, "serve.debug_requests=true" in done.json()["error"]["message"]) == (404, True)


@pytest.mark.parametrize("key", ["secret", "other"])
def test_every_key_lets_in_and_health_needs_none(key):
    guarded = app(keys=("secret", "other"))
    assert ask(guarded, "POST", PATH, json=CHAT, headers={"Authorization": f"Bearer {key}"}).status_code == 200
    assert ask(guarded, "GET", "/health").status_code == 200
    assert ask(guarded, "GET", "/v1/models").status_code == 401
    assert ask(guarded, "GET", "/metrics").status_code == 401


def test_other_origins_are_let_in_only_if_they_are_named():
    asks = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in ask(app(), "OPTIONS", PATH, headers=asks).headers
    named = app("serve.cors_origins=[https://page.example]")
    assert ask(named, "OPTIONS", PATH, headers=asks).headers["access-control-allow-origin"] == asks["Origin"]
    other = ask(named, "OPTIONS", PATH, headers={**asks, "Origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_beyond_the_limit_is_refused(declared):
    async def pieces() -> AsyncGenerator[bytes, None]:
        for _ in range(4):
            yield b" " * 1024

    content = b" " * 4096 if declared else pieces()
    headers = {"content-type": "application/json"}
    done = ask(app("serve.max_body_bytes=2048"), "POST", PATH, content=content, headers=headers)
    assert (done.status_code, done.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("stream", [False, True])
def test_a_single_piece_beyond_what_may_be_left_unread_reaches_a_client_that_reads(stream):
    words = "x" * (2 << 20)
    done = ask(app(), "POST", PATH, json={**CHAT, "messages": [{"role": "user", "content": words}], "stream": stream})
    assert words in done.text
    assert done.text.endswith("data: [DONE]\n\n" if stream else "}")


@pytest.mark.parametrize(("method", "path", "allowed"), [("GET", PATH, "POST"), ("POST", "/metrics", "GET, HEAD")])
def test_a_wrong_method_is_told_those_that_there_are(method, path, allowed):
    done = ask(app(), method, path)
    assert (done.status_code, done.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [1] * 70_000},
        {"messages": [{"role": "user", "content": [{}] * 700}] * 100},
        dict.fromkeys(map(str, range(70_000)), 1),
        {**CHAT, "logit_bias": dict.fromkeys(map(str, range(70_000)), 1)},
    ],
    ids=["turns", "parts", "fields", "entries"],
)
def test_a_body_of_too_many_items_is_refused_before_they_are_looked_at(body):
    done = ask(app(), "POST", PATH, json=body)
    assert done.status_code == 400
    assert done.json()["error"]["message"].endswith("has more than 65536 fields and items")


def test_what_nobody_expected_is_a_500_without_details():
    done = ask(app(error=ZeroDivisionError("the secret of the house")), "POST", PATH, json=CHAT)
    assert (done.status_code, done.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in done.text


def test_health_tells_every_state_with_its_reason():
    """R90: live as long as going on makes sense, ready while requests are taken."""

    def states(application: FastAPI) -> tuple[int, int, str, str | None]:
        live, ready, both = (ask(application, "GET", f"/health{path}") for path in ("/live", "/ready", ""))
        assert (ready.status_code, ready.json()) == (both.status_code, both.json())
        assert ask(application, "HEAD", "/health/live").status_code == live.status_code
        return live.status_code, ready.status_code, ready.json()["status"], ready.json()["reason"]

    one = app("deploy.stages.talker.replicas=2")
    service = one.state.service
    assert states(one) == (200, 200, "ready", None)
    assert one.state.service.plan.stage("talker").restarts == 3
    replicas = Replicas(service.plan, lambda: 0, LeaseLedger())
    service.engine.replicas = replicas.all()
    replicas.died("talker.0", "killed by SIGKILL", 0)
    assert states(one) == (200, 200, "degraded", "talker.0 is restarting: killed by SIGKILL")
    assert ask(one, "GET", "/health").json()["stages"]["talker"] == {
        "talker.0": {"state": "restarting", "generation": 0, "restarts": 0, "cause": "killed by SIGKILL"},
        "talker.1": {"state": "ready", "generation": 0, "restarts": 0, "cause": None},
    }
    replicas.died("talker.1", "exit code 3", 0)
    reason = "talker.0 is restarting: killed by SIGKILL; talker.1 is restarting: exit code 3"
    assert states(one) == (200, 503, "unhealthy", reason)
    service.admission.drain()
    assert states(one) == (200, 503, "draining", "the server is shutting down")
    service.engine.failure = KeyError("the secret of the house")
    live, ready, status, reason = states(one)
    assert (live, ready, status) == (503, 503, "broken")
    assert "orchestrator failed (KeyError)" in reason
    assert "secret" not in reason
    refused = ask(one, "POST", PATH, json=CHAT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "broken")


@pytest.mark.parametrize(
    ("recipe", "output", "path", "body"),
    [
        ("synthetic", "audio", "/tokenize", {"prompt": "hi"}),
        ("synthetic", "audio", "/v1/completions", {"prompt": "hi"}),
        ("synthetic", "text", "/v1/audio/speech", {"input": "hi"}),
        ("qwen_image", "image", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("qwen_image", "image", "/v1/completions", {"prompt": "hi"}),
        ("qwen_image", "image", "/v1/audio/speech", {"input": "hi"}),
        ("qwen_image", "image", "/tokenize", {"prompt": "hi"}),
    ],
)
def test_r44_a_route_whose_output_is_not_deployed_names_the_recipe(recipe, output, path, body):
    done = ask(app(f"deploy.outputs=[{output}]", recipe=recipe), "POST", path, json=body)
    message = f"{path} is not supported by recipe {recipe}, which gives {output}"
    assert (done.status_code, done.json()["error"]["message"]) == (400, message)


def test_of_several_sounds_a_message_has_the_first():
    one = app(recipe="synthetic_dag")
    ask(one, "POST", PATH, json={"messages": CHAT["messages"]})
    assert one.state.service.engine.seen[0].outputs == ("text", "audio")


class NoProcesses:
    """What no orchestrator is ready for: a plan none of whose processes is there."""

    replicas = ()
    media_ports: ClassVar[dict] = {}
    output_ports: ClassVar[dict] = {}


def test_an_orchestrator_that_fails_answers_who_waits_and_refuses_who_comes():
    async def scene() -> list[httpx.Response]:
        one = app()
        service = one.state.service
        transport = httpx.ASGITransport(app=one)
        async with (
            OmniEngine(service.plan, NoProcesses(), listener=fanout()) as service.engine,
            httpx.AsyncClient(transport=transport, base_url="http://omni") as client,
        ):
            calls = [await client.post(PATH, json=CHAT) for _ in range(2)]
            return [*calls, await client.get("/health/ready"), await client.get("/health/live")]

    waited, refused, ready, live = asyncio.run(scene())
    assert (waited.status_code, waited.json()["error"]["type"]) == (500, "server_error")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "broken")
    assert (ready.status_code, ready.json()["status"], live.status_code) == (503, "broken", 503)


@cache
def paths() -> set[str]:
    return set(app().openapi()["paths"])


@pytest.mark.parametrize("recipe", sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml")))
def test_r90_every_recipe_has_the_same_routes(recipe):
    one = app(recipe=recipe)
    for well in (200, 503):
        for method in ("GET", "HEAD"):
            for path in ("/health", "/health/ready", "/health/live", "/v1/models", "/metrics"):
                expected = well if path in ("/health", "/health/ready") else 200
                assert ask(one, method, path).status_code == expected, path
        one.state.service.admission.drain()
    assert one.openapi()["paths"].keys() == paths()


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([TRACEPARENT], TRACEPARENT),
        ([f"cc{TRACEPARENT[2:]}-what-comes-later"], f"cc{TRACEPARENT[2:]}"),
        ([], None),
        ([TRACEPARENT, TRACEPARENT], None),
        *(
            ([bad], None)
            for bad in (
                "", "00", f"{TRACEPARENT}-more", TRACEPARENT.upper(), f"ff{TRACEPARENT[2:]}", f"0{TRACEPARENT}",
                TRACEPARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
                TRACEPARENT.replace("b7ad6b7169203331", "0" * 16),
            )
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("path", "body"), [(PATH, CHAT), ("/v1/completions", {"prompt": "hi"}), ("/v1/audio/speech", {"input": "hi"})]
)
def test_a_traceparent_goes_with_the_request_and_one_that_is_none_hurts_nobody(path, body, given, kept):
    one = app()
    ask(one, "POST", path, json=body, headers=[("traceparent", value) for value in given])
    assert [request.traceparent for request in one.state.service.engine.seen] == [kept]


@pytest.mark.parametrize(("asked", "given"), [({}, 7.0), ({"timeout_s": 2.5}, 2.5), ({"timeout_s": 8}, None)])
def test_r10_the_servers_deadline_holds_for_all_and_a_call_may_ask_for_less(asked, given):
    one = app("serve.timeout_s=7.0")
    done = ask(one, "POST", PATH, json={**CHAT, **asked})
    assert [request.timeout_s for request in one.state.service.engine.seen] == [given] * (given is not None)
    assert done.status_code == (200 if given else 400)


def test_r34_a_recording_beyond_the_limit_is_refused_with_the_seconds():
    def heard(seconds: float) -> httpx.Response:
        data = base64.b64encode(sound(tone(seconds, 16_000), 16_000)).decode()
        part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        body = {**CHAT, "messages": [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}]}
        return ask(app("serve.max_audio_s=1.0"), "POST", PATH, json=body)

    assert heard(0.9).status_code == 200
    refused = heard(1.5)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[0].content[0]")
    assert "1.5" in refused.json()["error"]["message"]


def test_prompts_are_logged_only_if_asked_for(caplog):
    caplog.set_level("INFO", "omni.server")
    ask(app(), "POST", PATH, json=CHAT)
    assert "'hi'" not in caplog.text
    ask(app("serve.log_prompts=true"), "POST", PATH, json=CHAT)
    assert "'hi'" in caplog.text


def test_places_are_handed_on_in_order_and_a_waiter_that_leaves_takes_none():
    async def scene() -> list[str]:
        door, order, leave = Admission(1, 2), [], asyncio.Event()

        async def enter(name: str) -> None:
            async with door.place():
                order.append(name)
                await leave.wait()

        tasks = [asyncio.create_task(enter(name)) for name in ("first", "second", "third")]
        await asyncio.sleep(0)
        assert (door.running, door.waiting) == (1, 2)
        with pytest.raises(ApiError, match="1 requests are running and 2 waiting"):
            await enter("fourth")
        tasks[1].cancel()
        await asyncio.sleep(0)
        leave.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.wait_for(door.idle(), 1)
        assert (door.running, door.waiting) == (0, 0)
        return order

    assert asyncio.run(scene()) == ["first", "third"]


def test_a_draining_door_lets_nobody_in_and_turns_away_who_waits():
    async def scene() -> None:
        door = Admission(1, 1)
        async with door.place():
            waiting = asyncio.create_task(door.place().__aenter__())
            await asyncio.sleep(0)
            door.drain()
            with pytest.raises(ApiError, match="shutting down"):
                await door.place().__aenter__()
            door.turn_away("the end")
            with pytest.raises(ApiError, match="the end"):
                await waiting
        assert door.running == 0

    asyncio.run(scene())
