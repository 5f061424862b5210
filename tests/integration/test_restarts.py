"""Real stage processes that are killed and started again: what the requests in them, after them and beside them get."""

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from omni_cli.runtime.events import Event, ProcessDead, ProcessStarted, StageSubmitted
from omni_cli.runtime.request import OmniRequest
from stages.events import StepDone
from stages.messages import ChatMessage, Part
from stages.models.synthetic.expected import expected_audio
from stages.models.synthetic.options import StageDelays, SyntheticOptions
from tests.integration.recorded import Recording, Session, plan_of, record

WORDS = "one two three four"


def request(name: str, *outputs: str, **options: object) -> OmniRequest:
    return OmniRequest(
        request_id=name,
        seed=7,
        conversation=(ChatMessage(role="user", parts=(Part(kind="text", text=WORDS),)),),
        outputs=outputs or ("text", "audio"),
        options=SyntheticOptions(**options),  # type: ignore[arg-type]
    )


def kill(recording: Recording, process: str) -> None:
    """The latest life of the process."""
    pid = [e.pid for _, _, e in recording.of(ProcessStarted) if e.process == process][-1]  # type: ignore[attr-defined]
    os.kill(pid, signal.SIGKILL)


async def until(session: Session, moment: Callable[[str, Event], bool]) -> None:
    """Returns when an event is heard that is the moment."""
    heard = asyncio.Event()

    def watch(source: str, event: Event) -> bool:
        if moment(source, event):
            heard.set()
        return heard.is_set()

    session.recording.watches.append(watch)
    await asyncio.wait_for(heard.wait(), 60)


def right(recording: Recording, *names: str) -> None:
    for name in names:
        outputs = recording.outputs[name]
        assert "text" not in outputs or outputs["text"].text == WORDS
        sound = b"".join(bytes(payload.tensor("audio").data) for payload in outputs["audio"].payloads)
        assert sound == expected_audio(WORDS, 7).tobytes()


@pytest.mark.parametrize("mode", ["complete", "incremental"])
def test_r91_every_stage_may_die_and_serves_again(mode: str) -> None:
    words = [f"pipeline.stages.{c}.inputs.{p}={mode}" for c, p in (("talker", "thinker"), ("code2wav", "talker"))]

    async def act(session: Session) -> None:
        for stage in ("code2wav", "talker", "thinker", "talker"):
            kill(session.recording, f"{stage}.0")
            await until(session, lambda _, event: isinstance(event, ProcessDead))
            await session.one(request(f"after {len(session.recording.outputs)}"))

    recording = record(plan_of("recipe=synthetic", *words), act)
    assert recording.findings() == []
    right(recording, *(f"after {n}" for n in range(4)))
    assert [e.generation for _, _, e in recording.of(ProcessStarted) if e.process == "talker.0"] == [0, 1, 2]
    assert sum(not e.expected for _, _, e in recording.of(ProcessDead)) == 4


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_request_goes_on_after_the_death_of_its_replica(replicas: int) -> None:
    """Nothing of its sound was there yet: it is run again, in the other replica or in the next life of the only one."""

    async def act(session: Session) -> None:
        for stage in ("thinker", "talker"):
            slow = StageDelays(**{stage: 100.0})
            asked = asyncio.ensure_future(session.one(request(stage, "audio", delay_ms=slow)))
            await until(session, lambda source, event: isinstance(event, StepDone) and source == f"{stage}.0")  # noqa: B023
            kill(session.recording, f"{stage}.0")
            await asked

    words = [f"deploy.stages.{stage}.replicas={replicas}" for stage in ("thinker", "talker")]
    recording = record(plan_of("recipe=synthetic", *words), act)
    assert recording.findings() == []
    right(recording, "thinker", "talker")
    again = [e.process for _, _, e in recording.of(StageSubmitted) if e.stage == "talker"]
    assert again == ["talker.0", "talker.0", f"talker.{replicas - 1}"]
