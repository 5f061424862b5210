"""What the progress of a batch counts, and when it is drawn."""

import io

import pytest

from omni_cli.artifacts.records import ArtifactRecord, ResultRecord
from omni_cli.batch.display import AnswerDisplay
from omni_cli.batch.progress import Progress, ProgressDisplay
from omni_cli.runtime.events import CONTROL, ProcessDead, StageSubmitted
from stages.events import Scheduled, StageCancelled, StageFinished


def submitted(process: str, uid: int) -> tuple[str, StageSubmitted]:
    stage = process.rpartition(".")[0]
    return CONTROL, StageSubmitted(t_ns=0, uid=uid, stage=stage, process=process, waits_for=())


def scheduled(process: str, uid: int) -> tuple[str, Scheduled]:
    return process, Scheduled(t_ns=0, uid=uid)


def finished(process: str, uid: int) -> tuple[str, StageFinished]:
    return process, StageFinished(t_ns=0, uid=uid, reason="stop", units=1)


def line(*events: tuple[str, object]) -> str:
    progress = Progress(("thinker", "talker"), 3)
    for source, event in events:
        progress.event(source, event)  # type: ignore[arg-type]
    return progress.line().partition(" | ")[2]


def test_a_request_waits_then_runs_then_is_done():
    events = [*(submitted("thinker.0", uid) for uid in (1, 2, 3)), scheduled("thinker.0", 1), scheduled("thinker.0", 2)]
    assert line(*events, finished("thinker.0", 2)) == "thinker 1 waiting, 1 running, 1 done | talker idle"


def test_a_cancel_of_a_request_that_has_left_counts_for_nothing():
    events = [submitted("thinker.0", 1), scheduled("thinker.0", 1), finished("thinker.0", 1)]
    assert line(*events, ("thinker.0", StageCancelled(t_ns=0, uid=1))) == "thinker 1 done | talker idle"


def test_a_dead_process_is_done_with_its_own_requests_only():
    dead = ProcessDead(t_ns=0, process="talker.0", expected=False, cause="exit code 3")
    events = [submitted("talker.0", 1), submitted("talker.1", 2), scheduled("talker.1", 2), (CONTROL, dead)]
    assert line(*events) == "thinker idle | talker 1 running, 1 done"


def test_without_a_terminal_a_line_comes_now_and_then_and_never_twice():
    now, screen = [0.0], io.StringIO()
    display = ProgressDisplay(Progress(("thinker",), 1), screen, clock=lambda: now[0])
    for uid, seconds in ((1, 4.0), (2, 6.0), (3, 7.0)):
        now[0] = seconds
        display.event(*submitted("thinker.0", uid))
    display.result(ResultRecord(request_id="a", folder="a", status="failed"))
    display.close()
    display.close()
    assert screen.getvalue().splitlines() == [
        "0/1 requests | thinker 2 waiting",
        "1/1 requests, 1 failed | thinker 3 waiting",
    ]


@pytest.mark.parametrize(
    ("outputs", "quiet", "shown"),
    [(("image",), True, "run/a/image.out\n"), (("image",), False, ""), (("text", "audio"), True, "")],
)
def test_a_quiet_run_says_where_it_has_put_what_is_no_text(capsys, monkeypatch, tmp_path, outputs, quiet, shown):
    monkeypatch.chdir(tmp_path)
    artifacts = tuple(ArtifactRecord(output=name, path=f"a/{name}.out") for name in outputs)
    record = ResultRecord(request_id="a", folder="a", status="finished", artifacts=artifacts)
    AnswerDisplay(tmp_path / "run" if quiet else None).result(record)
    assert capsys.readouterr().out == shown
