"""Real stage processes that are killed and started again: what the requests in them, after them and beside them get."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_cli.runtime.events import Event, ProcessDead, ProcessStarted, StageSubmitted
from omni_cli.runtime.request import OmniRequest
from stages.events import StepDone
from stages.messages import ChatMessage, Part
from stages.models.synthetic.options import StageDelays, SyntheticOptions
from tests.integration.cli import check_trace, leaves_nothing, omni, start, started_here, wait_for, wait_for_event
from tests.integration.recorded import Recording, Session, plan_of, record
from tests.synthetic_answers import expected_audio

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


SLOW = ("recipe=synthetic", "synthetic.delay_ms.thinker=100", "--prompt", " ".join(["word"] * 20), "--out", "run")


def test_a_run_whose_stage_died_ends_well_and_tells_of_both_lives(tmp_path: Path) -> None:
    trace = tmp_path / "run/trace.jsonl"
    with leaves_nothing():
        process = start("run", *SLOW, cwd=tmp_path)
        wait_for_event(trace, "step_done", src="thinker.0")
        os.kill(wait_for_event(trace, "process_started", process="talker.0")["pid"], signal.SIGKILL)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        shown = omni("trace", "show", "run", "--json", cwd=tmp_path)
    assert "talker.0 is ready again, as generation 1" in said
    lives = [(p["process"], p["generation"], p["expected"]) for p in json.loads(shown.out)["processes"]]
    assert [life for life in lives if life[0] == "talker.0"] == [("talker.0", 0, False), ("talker.0", 1, True)]
    check_trace(tmp_path / "run")


def test_a_parent_that_is_killed_while_a_stage_starts_again_leaves_no_process_and_the_next_start_is_clean(
    tmp_path: Path,
) -> None:
    trace, before = tmp_path / "run/trace.jsonl", started_here()
    with leaves_nothing():
        process = start("run", *SLOW, "synthetic.init_delay_s.talker=1", cwd=tmp_path)
        wait_for_event(trace, "step_done", src="thinker.0")
        os.kill(wait_for_event(trace, "process_started", process="talker.0")["pid"], signal.SIGKILL)
        wait_for_event(trace, "process_started", process="talker.0", generation=1)
        process.kill()
        process.communicate()
        wait_for(lambda: started_here() <= before, "the end of every stage", 10)
        assert omni("run", "recipe=synthetic", "--prompt", "hi", cwd=tmp_path).code == 0
