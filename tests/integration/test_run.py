"""`omni run` with one request: its content, its answer as it comes, its files, its limit."""

import hashlib
import json
import os
import signal

import numpy as np

from omni_cli.artifacts.audio import to_pcm16
from tests.integration.cli import check_trace, leaves_nothing, omni, read_events, start, wait_for_event
from tests.synthetic_answers import expected_audio

NEVER_END = ("recipe=synthetic", "synthetic.never_end=true", "--out", "run")


def test_a_run_leaves_the_answer_its_sound_and_what_made_them(tmp_path):
    with leaves_nothing():
        ended = omni("run", "recipe=synthetic", "--prompt", "one two", "--seed", "5", cwd=tmp_path)
    assert (ended.code, ended.out) == (0, "one two\n")
    assert ended.text() == "one two"
    samples, rate_hz = ended.audio()
    assert np.array_equal(to_pcm16(samples), to_pcm16(np.array(expected_audio("one two", 5))))

    manifest = json.loads((ended.run / "manifest.json").read_bytes())
    planned = json.loads(omni("plan", "recipe=synthetic", "--json", cwd=tmp_path).out)
    assert json.loads((ended.run / "plan.json").read_bytes()) == planned
    assert (manifest["status"], manifest["digests"]["plan"]) == ("finished", planned["digest"])
    assert {"omni-stages", "torch", "transformers"} <= manifest["versions"]["packages"].keys() | {"omni-stages"}
    (request,) = manifest["requests"]
    assert (request["request_id"], request["status"], request["seed"]) == ("request", "finished", 5)
    for artifact in request["artifacts"]:
        assert hashlib.sha256((ended.run / artifact["path"]).read_bytes()).hexdigest() == artifact["sha256"]
    (sound,) = [artifact for artifact in request["artifacts"] if artifact["output"] == "audio"]
    assert sound["duration_s"] == len(samples) / rate_hz
    check_trace(ended.run)


def test_a_conversation_comes_from_a_file_or_stdin(tmp_path):
    turns = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "hm"}]
    turns.append({"role": "user", "content": [{"type": "text", "text": "second "}, {"type": "text", "text": "half"}]})
    words = ("run", "recipe=synthetic", "--modalities", "text", "--messages", "-")
    ended = omni(*words, cwd=tmp_path, stdin=json.dumps(turns).encode())
    assert (ended.code, ended.out) == (0, "second half\n")


def test_audio_of_no_frames_is_empty_and_no_failure(tmp_path):
    ended = omni(
        "run", "recipe=synthetic", "synthetic.frames=0", "--prompt", "hush", "-q", "--out", "run", cwd=tmp_path
    )
    assert (ended.code, ended.out) == (0, "hush\n")
    assert ended.err == "request request has no audio: nothing came (finished: empty)\n"
    assert [path.name for path in (tmp_path / "run/request").iterdir()] == ["text.txt"]
    manifest = json.loads((tmp_path / "run/manifest.json").read_bytes())
    assert (manifest["status"], manifest["counts"]["empty_outputs"]) == ("finished", 1)
    states = {artifact["output"]: artifact["state"] for artifact in manifest["requests"][0]["artifacts"]}
    assert states == {"text": "written", "audio": "empty"}
    check_trace(tmp_path / "run")


def test_a_request_whose_time_is_up_fails_and_keeps_what_was_finished(tmp_path):
    with leaves_nothing():
        ended = omni("run", *NEVER_END, "request.timeout_s=0.5", "--prompt", "one two", cwd=tmp_path)
    assert (ended.code, ended.out) == (1, "one two\n")
    assert "failed: request request failed in stage talker: DeadlineExceeded: not done after timeout_s=0.5" in ended.err
    assert ended.text() == "one two"
    assert not (ended.run / "request/audio.wav").exists()
    check_trace(ended.run)


def test_text_is_on_stdout_before_the_run_ends_and_stays_when_it_is_terminated(tmp_path):
    with leaves_nothing():
        process = start("run", *NEVER_END, "--prompt", "one two", cwd=tmp_path)
        assert process.stdout.readline() == "one two\n"
        wait_for_event(tmp_path / "run/trace.jsonl", "step_done", src="talker.0")
        os.kill(process.pid, signal.SIGTERM)
        rest, said = process.communicate(timeout=60)
    assert (process.returncode, rest) == (143, ""), said
    assert said.splitlines()[-2:] == [
        "interrupted: 0 of 1 requests finished; --resume run does the rest",
        "files: run",
    ]
    assert (tmp_path / "run/request/text.txt").read_text() == "one two"
    manifest = json.loads((tmp_path / "run/manifest.json").read_bytes())
    assert (manifest["status"], manifest["requests"][0]["status"]) == ("interrupted", "cancelled")
    ends = [event for event in read_events(tmp_path / "run/trace.jsonl") if event["kind"] == "output_finished"]
    assert [(end["modality"], end["outcome"]) for end in ends] == [("text", "finished"), ("audio", "cancelled")]
    check_trace(tmp_path / "run")
