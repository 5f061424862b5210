"""The server against its own OpenAPI document, on every route: what it answers is what it says that it answers."""

import os

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, seed, settings
from schemathesis.config import SchemathesisConfig

from tests.server.serving import Server
from tests.server.test_doors import app

EXAMPLES = 100 if os.environ.get("OMNI_SOAK") else 6

CONFIG = SchemathesisConfig.from_dict(
    {
        # A deadline of a microsecond is a valid wish, and missing it no fault of the server's.
        "checks": {"not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", 504]},
                   # What fits the document may still be wrong here: no model of that name, a medium that is none.
                   "positive_data_acceptance": {"enabled": False}},
        "phases": {"stateful": {"enabled": False}},
    }
)  # fmt: skip
document = schemathesis.openapi.from_dict(app().openapi(), config=CONFIG)

# What fits the document, and yet would end nearly every drawn call at the door.
AT_THE_DOOR = ("model", "modalities", "speed", "synthetic", "sampling", "timeout_s", "logprobs", "top_logprobs")


def let_in(body: dict) -> None:
    body.update(dict.fromkeys(AT_THE_DOOR & body.keys()))
    if "prompt" in body:
        body["prompt"] = "hello"
    for message in body.get("messages") or ():
        if not isinstance(message.get("content"), list):
            message["content"] = message.get("content") or "hello"


@document.parametrize()
@seed(4)
@settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck),
          phases=(Phase.explicit, Phase.generate))  # fmt: skip
def test_every_route_keeps_to_its_document(case: schemathesis.Case, server: Server):
    if case.meta.generation.mode.is_positive and isinstance(case.body, dict):
        let_in(case.body)
    case.call_and_validate(base_url=server.url, timeout=60)


def test_the_document_is_the_one_that_is_served_and_the_same_process_goes_on(server: Server):
    assert httpx.get(f"{server.url}/openapi.json").json() == document.raw_schema
    assert server.process.poll() is None
    assert server.chat().status_code == 200
