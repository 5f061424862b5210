"""What runs out fails the request that met it, with the key that helps, and the next one is answered."""

import asyncio
from collections.abc import Callable

import pytest

from omni_cli.runtime.events import Event, StageSubmitted
from omni_cli.runtime.request import OmniRequest
from stages.events import StageCancelled
from stages.models.synthetic.options import Fail, StageDelays, SyntheticOptions
from tests.integration.cli import batch, check_trace, leaves_nothing
from tests.integration.recorded import Recording, Session, plan_of, record
from tests.integration.test_incremental_processes import INCREMENTAL, SLOW, ask, sound
from tests.unit.omni_cli.artifacts.test_artifacts_atomic import file_size_limit

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


def heard(session: Session, moment: Callable[[str, Event], bool]) -> asyncio.Event:
    """Set once an event is the moment."""
    done = asyncio.Event()

    def watch(source, event):
        if moment(source, event):
            done.set()
        return done.is_set()

    session.recording.watches.append(watch)
    return done


async def meet_a_full_queue(session: Session, request: OmniRequest) -> None:
    """While another is in the talker, which then leaves it."""
    there = heard(session, lambda source, event: isinstance(event, StageSubmitted) and event.stage == "talker")
    busy = asyncio.ensure_future(session.one(ask("busy", SyntheticOptions(never_end=True))))
    await there.wait()
    await session.one(request)
    left = heard(session, lambda source, event: isinstance(event, StageCancelled) and source == "talker.0")
    session.cancel_at("busy", lambda source, event, uid: True)
    await session.one(ask("text", outputs=("text",)))  # something is heard
    await busy
    await left.wait()


@pytest.fixture(scope="module")
def recording() -> Recording:
    async def act(session):
        for name, (own, *_) in CASES.items():
            request = ask(name, SyntheticOptions(frames=8, **own))
            await (meet_a_full_queue(session, request) if name == "a queue" else session.one(request))
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


def test_an_output_that_finds_no_room_on_the_disk_fails_its_request_alone(tmp_path):
    """The kernel refuses any file of more than 600 kB, as a full disk would; all but one sound is smaller."""
    small_rings = (
        "deploy.stages.thinker.inputs.request.ring_bytes=65536",
        "deploy.stages.talker.inputs.thinker.ring_bytes=65536",
        "deploy.stages.code2wav.inputs.talker.ring_bytes=65536",
        "deploy.stages.code2wav.output.ring_bytes=524288",
    )
    lines = [{"id": str(frames), "prompt": "one two three", "synthetic": {"frames": frames}} for frames in (400, 4)]
    with file_size_limit(600_000), leaves_nothing():
        ended = batch(tmp_path, lines, "recipe=synthetic", *small_rings, "--out", "run")
    assert ended.code == 1
    failed = ended.results["400"]
    assert (failed["status"], failed["error"]["kind"]) == ("failed", "ArtifactError")
    assert "audio.wav: cannot be written: File too large: the file size limit (ulimit -f)" in failed["error"]["message"]
    assert ended.results["4"]["status"] == "finished"
    check_trace(ended.run)
