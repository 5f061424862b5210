"""What runs out fails the request that met it, with the key that helps, and the next one is answered."""

import pytest

from stages.models.synthetic.options import Fail, StageDelays, SyntheticOptions
from tests.integration.recorded import Recording, plan_of, record
from tests.integration.test_incremental_processes import INCREMENTAL, SLOW, ask, sound

ROOM = (
    "deploy.stages.code2wav.inputs.talker.ring_bytes=8192",
    "deploy.stages.thinker.kv_blocks=16",
    "deploy.stages.thinker.kv_block_tokens=4",
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
    "a ring that is full for a while": ({"payload_bytes": 7000, "delay_ms": StageDelays(code2wav=5)}, "", "", ""),
}


@pytest.fixture(scope="module")
def recording() -> Recording:
    async def act(session):
        for name, (own, *_) in CASES.items():
            await session.one(ask(name, SyntheticOptions(frames=8, **own)))
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
