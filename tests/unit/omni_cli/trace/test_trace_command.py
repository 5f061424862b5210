import fcntl
import json
import os

import pytest
from typer.testing import CliRunner

from omni_cli.commands.trace import app
from omni_cli.errors import OmniError
from omni_cli.trace.codec import encode
from omni_cli.trace.reader import TraceReader
from omni_cli.trace.recorder import Recorder
from tests.trace.scenarios import SCENARIOS


@pytest.fixture
def omni(tmp_path, monkeypatch):
    """Runs a command line in a folder with one run per scenario; returns exit code, stdout and stderr."""
    for name, scenario in SCENARIOS.items():
        folder = tmp_path / "outputs" / "demo" / name
        folder.mkdir(parents=True)
        trace = scenario(1)
        lines = (encode(line.source, line.ordinal, line.event) for line in trace)
        (folder / "trace.jsonl").write_text("".join(lines))
        (folder / "plan.json").write_text(json.dumps(trace.plan.document()))
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


def test_a_trace_that_is_still_being_written_is_judged_by_what_is_there(omni, tmp_path):
    finished = list(TraceReader(tmp_path / "outputs" / "demo" / "finished" / "trace.jsonl"))
    path = tmp_path / "trace.jsonl"
    recorder = Recorder(path)
    assert omni("check", str(path))[0] == 0, "nothing is there yet"
    for line in finished[:-1]:
        recorder.hear(line.source, line.event)
    recorder.close()
    assert omni("check", str(path))[0] == 1, "it is closed, without an end"
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert omni("check", str(path))[:2] == (0, f"{path}: is still being written; what is there is clean\n")
        assert "the trace is still being written\n" in omni("show", str(path))[1]


def test_a_corrupt_line_is_refused_with_its_place(omni, tmp_path):
    path = tmp_path / "outputs" / "demo" / "finished" / "trace.jsonl"
    path.write_text("{}\n" + path.read_text())
    for verb in ("check", "show", "replay"):
        code, _, err = omni(verb, "finished")
        assert code == 2
        assert err == "omni: outputs/demo/finished/trace.jsonl:1: kind: no event is called None\n"


def test_a_run_that_is_not_there_is_refused(omni):
    for verb, name in (("check", "nowhere"), ("show", "nowhere" * 50), ("replay", "nowhere")):
        code, _, err = omni(verb, name)
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


def test_why_understands_its_words_in_either_order(omni, tmp_path):
    assert omni("why", "r2", "outputs/demo/failed")[:2] == omni("why", "outputs/demo/failed", "r2")[:2]
    assert omni("why", "r2", "failed")[0] == 0
    said = "omni trace why REQUEST [RUN]: which request? The trace has r1, r2, r3"
    assert said in omni("why", "outputs/demo/failed")[2]
    path = tmp_path / "outputs" / "demo" / "expired" / "trace.jsonl"
    path.write_text(path.read_text().partition('"r2"')[0].rpartition("\n")[0] + "\n")  # its first request alone
    os.utime(path, (2e9, 2e9))
    for words in (("latest",), (str(path),), ()):
        assert omni("why", *words) == omni("why", "r1", "latest")
    (tmp_path / "r2").write_text("no trace")
    assert omni("why", "r2", "outputs/demo/failed")[0] == 0


def test_show_gives_json(omni):
    code, out, _ = omni("show", "failed", "--json", "--request", "r2")
    assert code == 0
    (request,) = json.loads(out)["requests"]
    assert request["status"] == "failed"
    assert request["error"] == {"kind": "Boom", "message": "asked for", "stage": "thinker"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_replay_decides_as_recorded(omni, scenario):
    code, out, err = omni("replay", scenario)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].endswith("all as recorded")


def test_a_replay_shows_what_is_decided_otherwise(omni, tmp_path):
    path = tmp_path / "outputs" / "demo" / "whole_payloads" / "trace.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if '"stage_submitted"' in line)
    assert '"process":"thinker.0"' in lines[place]
    path.write_text("".join([*lines[:place], lines[place].replace("thinker.0", "thinker.1"), *lines[place + 1 :]]))
    code, out, _ = omni("replay", "whole_payloads")
    assert code == 1
    said = out.splitlines()
    start = next(n for n, text in enumerate(said) if f"trace.jsonl:{place + 1}: request r1, on " in text)
    assert said[start + 1] == "  the trace:   gives it to thinker.1, which waits for request"
    assert said[start + 2] == "  decided now: gives it to thinker.0, which waits for request"
    code, out, _ = omni("replay", "whole_payloads", "--json")
    first = json.loads(out)["divergences"][0]
    assert (code, first["request"], first["line"]) == (1, "r1", place + 1)
    assert (first["recorded"]["process"], first["decided"]["process"]) == ("thinker.1", "thinker.0")


def test_a_replay_steps_through_a_request_and_stops_where_it_is_told(omni):
    code, out, _ = omni("replay", "finished", "--request", "r1", "--until", "lease_granted")
    assert code == 0
    told = out.splitlines()
    assert told[0].split(maxsplit=3)[3] == "takes on r1 for text, audio, by way of thinker, talker, code2wav"
    assert "lets talker.0 read message 0 of thinker in slot 0 of thinker.0 (lease 0)" in out
    assert "talker.0 waiting, at 0: 0 of 1 messages of thinker read, the last was put" in out
    assert "holds slots 0 of thinker.0, which talker.0 has not given back" in out
    assert "ring thinker.0 -> talker: 7 of 8 slots free (r1)" in out


@pytest.mark.parametrize("until", ["0.00000002s", "20us", "7", "lease_granted"])
def test_who_holds_what_is_there_as_json(omni, until):
    code, out, _ = omni("replay", "finished", "--until", until, "--json")
    state = json.loads(out)["state"]
    assert code == 0
    assert [process["process"] for process in state["processes"]] == ["thinker.0", "talker.0", "code2wav.0"]
    assert {request["request"] for request in state["requests"]} <= {"r1", "r2", "r3"}


def test_what_a_replay_needs_is_named_where_it_is_missing(omni, tmp_path):
    folder = tmp_path / "outputs" / "demo" / "finished"
    assert "--until 'never': is no time" in omni("replay", "finished", "--until", "never")[2]
    assert (
        "--request r9: no such request up to there; there is r1, r2, r3"
        in omni("replay", "finished", "--request", "r9")[2]
    )
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(plan | {"digest": "another"}))
    assert "plan.json: is another plan (another) than that of trace.jsonl" in omni("replay", "finished")[2]
    (folder / "plan.json").write_text(json.dumps(plan | {"stages": 1}))
    assert "is not a plan that can be read" in omni("replay", "finished")[2]
    (folder / "plan.json").unlink()
    code, _, err = omni("replay", "finished")
    assert code == 2
    assert "plan.json: the run's plan is needed beside its trace" in err


def test_an_export_that_fails_leaves_an_older_one_alone(omni, tmp_path):
    export = ("export", "finished", "--format", "otlp-json", "--out", str(tmp_path / "export"))
    assert omni(*export)[0] == 0
    older = (tmp_path / "export").read_bytes()
    path = tmp_path / "outputs" / "demo" / "finished" / "trace.jsonl"
    path.write_text(path.read_text().partition("\n")[2])
    code, _, err = omni(*export)
    assert (code, "has no run_started" in err) == (2, True)
    assert (tmp_path / "export").read_bytes() == older


def test_an_export_says_where_a_trace_is_nonsense_and_halves_of_characters_are_none(omni, tmp_path):
    path = tmp_path / "outputs" / "demo" / "finished" / "trace.jsonl"
    first, *rest = path.read_text().splitlines()
    admitted = next(n for n, line in enumerate(rest) if "request_admitted" in line)

    def export(line: int, key: str, value: str, form: str = "otlp-json") -> tuple[int, str, str]:
        lines = [first, *rest]
        lines[line] = json.dumps(json.loads(lines[line]) | {key: value})
        path.write_text("\n".join([*lines, ""]))
        return omni("export", "finished", "--format", form)

    code, _, err = export(0, "wall_time", "noon")
    assert (code, ":1: wall_time is 'noon', no time of ISO 8601 (failed: ValueError: " in err) == (2, True)
    ids = (f"{1:032x}", f"{1:016x}")
    for parent in ("00-a-b-c", f"ff-{ids[0]}-{ids[1]}-01", f"00-{0:032x}-{ids[1]}-01", f"00-{ids[0]}-{0:016x}-01"):
        code, _, err = export(admitted + 1, "traceparent", parent)
        assert (code, f":{admitted + 2}: traceparent is '{parent}', none as the W3C" in err) == (2, True)
    for form in ("perfetto", "otlp-json"):
        code, out, _ = export(admitted + 1, "request_id", "half \ud83d of", form)
        assert (code, b"half ? of" in (tmp_path / out.strip()).read_bytes()) == (0, True)


def test_two_runs_are_compared_by_request(omni, tmp_path):
    code, out, _ = omni("diff", "whole_payloads", "finished", "--json")
    found = json.loads(out)
    assert (code, found["both"], found["only_a"]) == (1, 3, [])
    assert found["differences"][0] == {
        "request": "r1",
        "a": "gives it to thinker.0, which waits for request",
        "b": "gives it to thinker.0, which waits for nothing",
    }
    times = found["times"]
    for side in (0, 1):
        assert sum(share["ms"][side] for share in times["spent"]) == pytest.approx(times["total_ms"][side], abs=1e-4)
    code, out, _ = omni("diff", "killed", "killed")
    assert code == 0
    assert "4 requests in both, 4 of them decided alike" in out


def test_every_trace_of_a_resumed_run_is_checked(omni, tmp_path):
    folder = tmp_path / "outputs" / "demo" / "finished"
    (folder / "trace-2.jsonl").write_text((folder / "trace.jsonl").read_text())
    (folder / "trace.jsonl").write_text("")
    code, out, _ = omni("check", "finished")
    assert code == 1
    assert sorted(line.rpartition("/")[2] for line in out.splitlines()) == [
        "trace-2.jsonl: clean",
        "trace.jsonl:0: truncated at the start: the trace is empty",
    ]
