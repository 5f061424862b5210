"""A stage that stops answering is found and killed within `deploy.heartbeat_s`, and holds up nobody meanwhile."""

import os
import signal

from omni_cli.runtime.events import ProcessDead
from stages.events import OutputProduced, ProcessReady, StepDone
from stages.models.synthetic.options import DagFail, DagOptions, DagStageDelays
from tests.integration.recorded import plan_of, record
from tests.integration.test_incremental_processes import ask

LIMIT_S = 2.5
SAID = "said again and again " * 100


def test_a_step_that_never_returns_and_a_process_that_is_stopped_are_told_apart() -> None:
    """code2wav hangs in its first step; singer is stopped before its first frame has gone anywhere."""
    slow = DagStageDelays(thinker=1)
    hang = ask("code2wav.0", DagOptions(fail=DagFail(stage="code2wav", kind="hang")), outputs=("audio",))
    stopped = ask("singer.0", DagOptions(frames=10_000), outputs=("text", "audio_mix"))
    text = ask("text", DagOptions(delay_ms=slow), text=SAID, outputs=("text",))
    stamps = {}

    async def act(session):
        pids = {source: event.pid for _, source, event in session.recording.of(ProcessReady)}

        def stop(source, event):
            if source != "singer.0" or not isinstance(event, StepDone):
                return False
            os.kill(pids[source], signal.SIGSTOP)
            stamps["stopped"] = event.t_ns
            return True

        session.recording.watches.append(stop)
        await session.all_of([hang, stopped, text])
        await session.one(ask("after", DagOptions(frames=4), outputs=("audio", "audio_mix")))

    once = ("deploy.stages.code2wav.retry=0", "deploy.stages.singer.retry=0")
    recording = record(plan_of("recipe=synthetic_dag", f"deploy.heartbeat_s={LIMIT_S}", *once), act)
    assert recording.findings() == []
    dead = {event.process: event for _, _, event in recording.of(ProcessDead) if not event.expected}
    assert "it runs, but has not come back from a step for" in dead["code2wav.0"].cause
    assert "is stopped (SIGSTOP) and has given no sign of life for" in dead["singer.0"].cause
    for process, death in dead.items():
        assert "s, of at most 2.5 (deploy.heartbeat_s)" in death.cause
        assert death.cause.endswith("(killed by SIGKILL)")
        error = recording.errors[process].end.error
        assert (error.kind, error.message) == ("ProcessDied", f"{process}: {death.cause}")
    assert recording.outputs["text"]["text"].text == SAID
    assert {name: output.units for name, output in recording.outputs["after"].items()} == {"audio": 4, "audio_mix": 4}
    words = [event for _, _, event in recording.of(OutputProduced, "thinker.0") if event.uid == recording.uids["text"]]
    assert any(event.t_ns > stamps["stopped"] for event in words), "the others went on"
