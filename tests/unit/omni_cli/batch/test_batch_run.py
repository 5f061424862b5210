"""How a run ends: what came of it is said whatever else fails."""

from types import SimpleNamespace

import pytest

from omni_cli.artifacts.records import ResultRecord
from omni_cli.batch import run, summary
from omni_cli.batch.attempt import Attempt
from omni_cli.batch.state import RunState
from omni_cli.batch.task import Task
from omni_cli.errors import ArtifactError
from omni_cli.runtime.request import OutputChunk


class FullAtTheEnd:
    """A disk that takes the first manifest and not the last."""

    written = 0

    def manifest(self, manifest):
        self.written += 1
        if self.written > 1:
            raise ArtifactError("no room")


def test_what_failed_is_said_though_the_last_manifest_cannot_be_written(monkeypatch):
    said, state = [], SimpleNamespace(manifest=dict, exit_code=1)
    monkeypatch.setattr(run, "say_summary", lambda state, quiet: said.append(state.status))
    with pytest.raises(ArtifactError, match="no room"), run._concluded(state, FullAtTheEnd(), quiet=False):
        pass
    assert said == ["failed"]


def test_only_what_can_be_resumed_is_told_so(tmp_path):
    state = RunState(plan=None, folder=SimpleNamespace(path=tmp_path), started_at=None, tasks=(), status="interrupted")
    said = "interrupted: 0 of 0 requests finished"
    assert list(summary._lines(state)) == [f"{said}; --resume {tmp_path} does the rest"]
    state.resumable = False
    assert list(summary._lines(state)) == [said]


def test_what_a_request_set_in_vain_is_a_warning_and_said_in_a_quiet_run_too(tmp_path, capsys):
    state = RunState(plan=None, folder=SimpleNamespace(path=tmp_path), started_at=None, tasks=())
    idle = ("image.size: this model was trained at 64x32 alone",)
    state.results["a"] = ResultRecord(request_id="a", folder="a", status="finished", warnings=idle)
    summary.say_summary(state, quiet=True)
    assert capsys.readouterr() == ("", f"warning: {idle[0]}\n")
    state.tasks = [Task(request_id="a", notes=idle), Task(request_id="b", notes=idle)]
    summary.say_notes(state)
    summary.say_summary(state, quiet=True)
    assert capsys.readouterr() == ("", f"warning: {idle[0]}\n"), "known before the run, so once and before it"


def test_the_first_piece_of_an_output_is_the_first_that_holds_something():
    times = iter((0.0, 1.0, 2.0))
    attempt = Attempt(Task(request_id="a", outputs=("text",)), lambda: next(times))
    attempt.start(SimpleNamespace(seed=1))
    for seq, text in enumerate(("", "é")):  # the first token is half of a character
        attempt.add(OutputChunk(modality="text", seq=seq, units=1, eos=False, text=text))
    assert attempt.metrics == {"first_text_s": 1.0}
