"""What runs out fails the request that met it, with the key that helps, and the next one is answered."""

import asyncio

import pytest

from omni_cli.runtime.events import StageSubmitted
from stages.models.synthetic.options import Fail, StageDelays, SyntheticOptions
from tests.integration.recorded import Recording, Session, plan_of, record
from tests.integration.test_incremental_processes import INCREMENTAL, SLOW, ask, sound

ROOM = (
    "deploy.stages.code2wav.inputs.talker.ring_bytes=8192",
    "deploy.stages.thinker.kv_blocks=16",
    "deploy.stages.thinker.kv_block_tokens=4",
    "deploy.stages.talker.max_batch=1",
    "deploy.stages.talker.max_queue=0",
)
# Options or limits of a request, the stage that it fails in, and what it is told.
CASES = {
    "a payload that no ring holds": (
        {"payload_bytes": 9000},
        "talker",
        "PayloadTooLarge",
        "make it larger with deploy.stages.code2wav.inputs.talker.ring_bytes",
    ),
    "a prompt that no KV cache holds": ({"prompt_tokens": 1000}, "thinker", "RequestRefused", "kv_blocks"),
    "no memory": (
        {"fail": Fail(stage="code2wav", kind="oom", at=2)},
        "code2wav",
        "MemoryError",
        "give the stage less to do at once (deploy.stages.code2wav.max_batch)",
    ),
    "a queue": ({}, "talker", "QueueFull", "raise deploy.stages.talker.max_queue"),
    "a ring that is full for a while": ({"payload_bytes": 7000, "delay_ms": StageDelays(code2wav=5)}, "", "", ""),
}


async def occupy(session: Session) -> asyncio.Task[None]:
    """A request that stays in the talker; it has come there."""
    there = asyncio.Event()

    def watch(source, event):
        if isinstance(event, StageSubmitted) and event.stage == "talker":
            there.set()
        return there.is_set()

    session.recording.watches.append(watch)
    busy = asyncio.ensure_future(session.one(ask("busy", SyntheticOptions(never_end=True))))
    await there.wait()
    return busy


@pytest.fixture(scope="module")
def recording() -> Recording:
    async def act(session):
        for name, (own, *_) in CASES.items():
            busy = await occupy(session) if name == "a queue" else None
            await session.one(ask(name, SyntheticOptions(frames=8, **own)))
            if busy is not None:
                session.cancel_at("busy", lambda source, event, uid: True)
                await session.one(ask("text", outputs=("text",)))  # something is heard
                await busy
            await session.one(ask(f"after {name}", SyntheticOptions(frames=8, prompt_tokens=SLOW.prompt_tokens)))

    return record(plan_of("recipe=synthetic", *INCREMENTAL, *ROOM), act)


@pytest.mark.parametrize("name", CASES)
def test_what_runs_out_fails_one_request_with_the_remedy_and_the_next_is_answered(recording, name):
    _, stage, kind, remedy = CASES[name]
    if kind:
        error = recording.errors[name].end.error
        assert (error.stage, error.kind) == (stage, kind)
        assert remedy in error.message
    else:
        assert sound(recording, name) == sound(recording, f"after {name}")
    assert recording.outputs[f"after {name}"]["audio"].units == 8
    recording.check_ended_well()
