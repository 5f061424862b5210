"""Qwen3-Omni as three processes, through the engine: what reaches the caller equals transformers' own `generate`.

All requests are in flight at once, and nothing is left in /dev/shm.
"""

from functools import partial
from pathlib import Path

import pytest
import torch

from omni_cli.config.load import load_config
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory
from omni_cli.runtime.events import Event
from stages.events import StepDone
from tests.integration.engine_run import EngineRun, greedy_request, run_requests
from tests.integration.qwen3_omni_reference import Reference
from tests.integration.test_qwen3_omni_parity import CONVERSATIONS, SILENCING

pytestmark = pytest.mark.usefixtures("warm")

TEXT_TOKENS, CODEC_TOKENS = 20, 48
BITWISE = "deploy.stages.code2wav.decode=transformers"
SCARCE = {
    "thinker": ("kv_block_tokens=1", "kv_blocks=120", "step_tokens=24"),  # the longest answer has 114 tokens
    "talker": ("kv_block_tokens=4", "kv_blocks=60", "step_tokens=24"),
}
EDGES: dict[str, tuple[str, ...]] = {
    "as shipped": (),
    "complete, two replicas of each": (
        "pipeline.stages.talker.inputs.thinker=complete",
        "pipeline.stages.code2wav.inputs.talker=complete",
        *(f"deploy.stages.{stage}.replicas=2" for stage in ("thinker", "talker", "code2wav")),
    ),
    "preempted": tuple(f"deploy.stages.{stage}.{key}" for stage, keys in SCARCE.items() for key in keys),
}
ask = partial(greedy_request, text_tokens=TEXT_TOKENS, codec_tokens=CODEC_TOKENS)


@pytest.fixture(scope="module", params=EDGES.values(), ids=EDGES)
def run(folder: Path, request: pytest.FixtureRequest) -> EngineRun:
    words = ["recipe=qwen3_omni", f"model.path={folder}", BITWISE, *request.param]
    plan = build_plan(load_config(words), Inventory())
    asked = [ask(name, conversation) for name, conversation in CONVERSATIONS.items()]
    asked.append(ask("text alone", CONVERSATIONS["text"], outputs=("text",)))
    asked.append(ask("empty", [("user", [*SILENCING, "both"])]))
    asked.append(ask("no user", [("system", ["Say hello."])]))
    preempted = 0

    def listener(source: str, event: Event) -> None:
        nonlocal preempted
        if isinstance(event, StepDone):
            preempted += len(event.preempted)

    found = run_requests(plan, asked, listener)
    assert bool(preempted) == (request.param == EDGES["preempted"])
    return found


@pytest.mark.parametrize("kind", CONVERSATIONS)
def test_equal_to_generate(run: EngineRun, reference: Reference, kind: str) -> None:
    expected = reference.answer(CONVERSATIONS[kind], text_tokens=TEXT_TOKENS, codec_tokens=CODEC_TOKENS)
    outputs = run.outputs[kind]
    assert outputs["text"].text == reference.tokenizer.decode(expected.text_ids, skip_special_tokens=True)
    assert outputs["text"].units == len(expected.text_ids)
    assert {payload.scalar("sample_rate_hz") for payload in outputs["audio"].payloads} == {24000}
    assert torch.equal(run.waveform(kind), expected.waveform)
    assert outputs["audio"].units == expected.codes.shape[1]


def test_text_alone(run: EngineRun) -> None:
    assert run.outputs["text alone"].keys() == {"text"}
    assert run.outputs["text alone"]["text"].text == run.outputs["text"]["text"].text


def test_an_empty_answer_has_empty_audio(run: EngineRun) -> None:
    outputs = run.outputs["empty"]
    assert outputs["text"].text == ""
    assert outputs["audio"].reason == "empty"
    assert outputs["audio"].units == 0


def test_a_refusal_is_the_client_s_fault_and_names_the_stage(run: EngineRun) -> None:
    error = run.errors.pop("no user")
    assert error.fault == "client"
    assert error.stage == "thinker"
    assert "user message" in str(error)
    assert not run.errors


def test_nothing_is_left(run: EngineRun) -> None:
    assert run.segments_left == set()
    assert run.live_slots == 0
