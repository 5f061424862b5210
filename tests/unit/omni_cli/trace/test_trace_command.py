import json

import pytest
from typer.testing import CliRunner

from omni_cli.commands.trace import app
from omni_cli.errors import OmniError
from omni_cli.trace.codec import encode
from tests.trace.scenarios import SCENARIOS


@pytest.fixture
def omni(tmp_path, monkeypatch):
    """Runs a command line in a folder with one run per scenario; returns exit code, stdout and stderr."""
    for name, scenario in SCENARIOS.items():
        folder = tmp_path / "outputs" / "demo" / name
        folder.mkdir(parents=True)
        lines = (encode(line.source, line.ordinal, line.event) for line in scenario(1))
        (folder / "trace.jsonl").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, args)
        if isinstance(result.exception, OmniError):  # what the command line's entry makes of it
            return result.exception.exit_code, result.stdout, f"omni: {result.exception}\n"
        return result.exit_code, result.stdout, result.stderr

    return run


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_sound_runs_are_clean(omni, scenario):
    code, out, _ = omni("check", scenario)
    assert (code, out) == (0, f"outputs/demo/{scenario}/trace.jsonl: clean\n")


def test_findings_are_printed_with_file_and_line_and_end_with_1(omni, tmp_path):
    path = tmp_path / "outputs" / "demo" / "finished" / "trace.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:30], *lines[31:]]))
    code, out, _ = omni("check", "finished")
    assert code == 1
    assert out.startswith("outputs/demo/finished/trace.jsonl:31: its ordinal is 31, but 30 events precede it")


def test_a_torn_trace_is_truncated_and_only_that(omni, tmp_path):
    path = tmp_path / "outputs" / "demo" / "finished" / "trace.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    code, out, _ = omni("check", "finished")
    lines = out.splitlines()
    assert code == 1
    assert len(lines) == 2
    assert "truncated at process_dead from omni" in lines[0]
    assert lines[1].endswith("the last line is torn and was left out")


def test_a_corrupt_line_is_refused_with_its_place(omni, tmp_path):
    path = tmp_path / "outputs" / "demo" / "finished" / "trace.jsonl"
    path.write_text("{}\n" + path.read_text())
    for verb in ("check", "show"):
        code, _, err = omni(verb, "finished")
        assert code == 2
        assert err == "omni: outputs/demo/finished/trace.jsonl:1: kind: no event is called None\n"


def test_a_run_that_is_not_there_is_refused(omni):
    for verb in ("check", "show"):
        code, _, err = omni(verb, "nowhere")
        assert code == 2
        assert "nowhere: no such file, folder or run under outputs/" in err


def test_show_draws_the_run(omni):
    code, out, _ = omni("show", "failed")
    assert code == 0
    assert "request r2  failed" in out


def test_show_can_be_limited_to_a_request(omni):
    code, out, _ = omni("show", "failed", "--request", "r2")
    assert code == 0
    assert "request r2" in out
    assert "request r1" not in out
    code, _, err = omni("show", "failed", "--request", "r9")
    assert code == 2
    assert "--request r9: no such request in the trace; it has r1, r2, r3" in err


def test_show_gives_json(omni):
    code, out, _ = omni("show", "failed", "--json", "--request", "r2")
    assert code == 0
    (request,) = json.loads(out)["requests"]
    assert request["status"] == "failed"
    assert request["error"] == {"kind": "Boom", "message": "asked for", "stage": "thinker"}
