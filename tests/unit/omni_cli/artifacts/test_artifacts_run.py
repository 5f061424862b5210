import io
import json
import os
import resource
import subprocess
import sys
import threading
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_cli.artifacts.manifest import Manifest, installed_versions, write_manifest
from omni_cli.artifacts.records import ArtifactRecord, ErrorRecord, ResultRecord
from omni_cli.artifacts.results import ResultsLog, finished, read_results
from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.artifacts.waveform import Waveform
from omni_cli.artifacts.writer import ArtifactWriter
from omni_cli.errors import ArtifactError, ConfigError

NOON = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
SOUND = Waveform(samples=np.full(2400, 0.25, np.float32), rate_hz=24_000)
SILENCE = Waveform(samples=np.zeros(0, np.float32), rate_hz=24_000)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(recipe="synthetic", started_at=NOON, base=tmp_path)


def result(request_id: str, **facts: object) -> ResultRecord:
    return ResultRecord(request_id=request_id, folder="f", **{"status": "finished", **facts})  # type: ignore[arg-type]


def test_a_run_folder_is_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunFolder.create(recipe="smoke/text", started_at=NOON)
    assert run.path == tmp_path / "outputs" / "smoke" / "text" / "20260304-120000"
    assert run.path.is_dir()


@pytest.mark.parametrize("recipe", ["../../x", "/etc", ".", "", "a/../../b"])
def test_a_recipe_name_does_not_lead_out_of_the_base(tmp_path: Path, recipe: str) -> None:
    run = RunFolder.create(recipe=recipe, started_at=NOON, base=tmp_path / "base")
    assert run.path.is_relative_to(tmp_path / "base")


def test_runs_of_the_same_second_never_share_a_folder(tmp_path: Path) -> None:
    gate = threading.Barrier(8)
    made: list[Path] = []

    def start() -> None:
        gate.wait()
        made.extend(RunFolder.create(recipe="r", started_at=NOON, base=tmp_path).path for _ in range(5))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == len(made) == 40


def test_a_named_folder_must_be_empty(tmp_path: Path) -> None:
    run = RunFolder.claim(tmp_path / "mine")
    run.trace.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"mine: holds files already: name an empty folder$"):
        RunFolder.claim(tmp_path / "mine")


def test_only_a_run_can_be_reopened(tmp_path: Path, run: RunFolder) -> None:
    with pytest.raises(ConfigError, match="there is no such run folder"):
        RunFolder.reopen(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is no run folder"):
        RunFolder.reopen(run.path)
    run.results.touch()
    assert RunFolder.reopen(run.path) == run


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(b"")
    with pytest.raises(ArtifactError, match="base/r: cannot be written"):
        RunFolder.create(recipe="r", started_at=NOON, base=tmp_path / "base")


def test_what_a_request_leaves(run: RunFolder) -> None:
    with ArtifactWriter(run) as writer:
        text = writer.text("r/1", "héllo\n")
        audio = writer.audio("r/1", SOUND)
        mix = writer.audio("r/1", SOUND, output="audio_mix", audio_format="flac")
        image = writer.image("r/1", np.zeros((4, 6, 3), np.uint8), index=0, metadata={"seed": "1"})
        video = writer.video("r/1", np.zeros((4, 16, 16, 3), np.uint8), fps=8)
        writer.end_request("r/1", "finished", artifacts=(text, audio, mix, image, video), seed=7)
    (record,) = read_results(run.results)
    folder = run.request_folder("r/1")
    assert (record.request_id, record.folder, record.seed) == ("r/1", folder.name, 7)
    assert {path.name for path in folder.iterdir()} == {
        "text.txt", "audio.wav", "audio_mix.flac", "image-0.png", "video.mp4"
    }  # fmt: skip
    for artifact in record.artifacts:
        assert artifact.path is not None
        data = (run.path / artifact.path).read_bytes()
        assert (artifact.size_bytes, artifact.sha256) == (len(data), sha256(data).hexdigest())
    assert (folder / "text.txt").read_bytes() == "héllo\n".encode()
    assert soundfile.info(folder / "audio.wav").samplerate == 24_000
    assert (audio.duration_s, audio.rate_hz, audio.frames) == (0.1, 24_000, 2400)
    assert (image.width, image.height) == (6, 4)
    assert (video.fps, video.duration_s) == (8, 0.5)


def test_no_sound_is_said_and_no_file(run: RunFolder) -> None:
    with ArtifactWriter(run) as writer:
        record = writer.end_request("a", "finished", artifacts=(writer.audio("a", SILENCE), writer.text("a", "")))
        writer.manifest(
            Manifest(recipe="r", status="finished", started_at=NOON, versions=installed_versions(), requests=(record,))
        )
    assert record.artifacts[0] == ArtifactRecord(output="audio", state="empty")
    assert [path.name for path in run.request_folder("a").iterdir()] == ["text.txt"]
    body = json.loads(run.manifest.read_bytes())
    assert body["counts"] == {"finished": 1, "empty_outputs": 1}
    assert body["requests"][0]["artifacts"][0] == {"output": "audio", "state": "empty"}


def test_manifest(run: RunFolder) -> None:
    failed = result("b", status="failed", error=ErrorRecord(message="m", fault="server", stage="talker"))
    manifest = Manifest(
        recipe="r",
        status="failed",
        started_at=NOON,
        finished_at=NOON,
        versions=installed_versions(("numpy", "no-such-package")),
        digests={"plan": "ab"},
        requests=(result("a\ud800"), failed),
        warnings=("w",),
    )
    write_manifest(run.manifest, manifest)
    body = json.loads(run.manifest.read_bytes())
    assert body["schema_version"] == 1
    assert body["versions"]["packages"] == {"numpy": np.__version__}
    assert body["versions"]["python"] == sys.version.split()[0]
    assert body["counts"] == {"finished": 1, "failed": 1, "empty_outputs": 0}
    assert body["started_at"] == "2026-03-04T12:00:00+00:00"
    assert body["requests"][0]["request_id"] == "a\ud800"
    assert body["requests"][1]["error"] == {"message": "m", "fault": "server", "stage": "talker"}
    assert (body["digests"], body["warnings"], body["status"]) == ({"plan": "ab"}, ["w"], "failed")


ODD = st.text(st.characters(), max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(ODD, max_size=5), message=ODD, metric=st.floats(allow_nan=False, allow_infinity=False))
def test_a_result_is_read_as_it_was_written(tmp_path: Path, ids: list[str], message: str, metric: float) -> None:
    path = tmp_path / "results.jsonl"
    path.unlink(missing_ok=True)
    artifact = ArtifactRecord(output="audio", path="f/audio.wav", size_bytes=1, duration_s=0.5, warnings=(message,))
    written = tuple(
        result(
            request_id,
            artifacts=(artifact,),
            error=ErrorRecord(message=message, fault="client"),
            metrics={"ttfa_s": metric},
        )
        for request_id in ids
    )
    with ResultsLog(path) as log:
        for record in written:
            log.append(record)
    assert read_results(path) == written
    assert path.read_bytes().count(b"\n") == len(ids)


def test_a_torn_last_line_is_read_over_and_cut_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultsLog(path) as log:
        log.append(result("a"))
        log.append(result("b"))
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    for end in range(second, len(whole)):
        path.write_bytes(whole[:end])
        assert [record.request_id for record in read_results(path)] == ["a"]
    with ResultsLog(path) as log:
        log.append(result("c"))
    assert [record.request_id for record in read_results(path)] == ["a", "c"]


def test_a_line_is_there_as_soon_as_the_request_ends(tmp_path: Path) -> None:
    with ResultsLog(tmp_path / "r") as log:
        log.append(result("a"))
        assert len(read_results(tmp_path / "r")) == 1


@pytest.mark.parametrize("line", [b"{}", b"nonsense", b'{"request_id": 1}', b"\xff\xfe", b"[]", b""])
def test_a_whole_line_that_is_no_result_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "results.jsonl"
    with ResultsLog(path) as log:
        log.append(result("a"))
    with path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(ConfigError, match=r"results\.jsonl, line 2: is not a result of a run"):
        read_results(path)


def test_no_file_is_no_result(tmp_path: Path) -> None:
    assert read_results(tmp_path / "results.jsonl") == ()


def test_a_line_that_does_not_fit_on_the_disk_leaves_no_part(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultsLog(path) as log:
        log.append(result("a"))
        before = path.read_bytes()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
        try:
            with pytest.raises(ArtifactError, match="cannot be written: File too large"):
                log.append(result("b" * 500))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == before
        log.append(result("c"))
    assert [record.request_id for record in read_results(path)] == ["a", "c"]


def test_two_processes_do_not_write_one_run(run: RunFolder) -> None:
    code = f"""
import pathlib
from omni_cli.artifacts.results import ResultsLog
from omni_cli.errors import ArtifactError
try:
    ResultsLog(pathlib.Path({str(run.results)!r}))
except ArtifactError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ArtifactWriter(run):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == f"{run.results}: another process is writing to this run", done.stderr
    with ArtifactWriter(run):
        pass  # the lock ends with the writer


def test_what_need_not_be_done_again(run: RunFolder) -> None:
    with ArtifactWriter(run) as writer:
        for request_id in ("done", "lost", "cut", "again"):
            artifacts = (writer.audio(request_id, SOUND), writer.text(request_id, "x"))
            writer.end_request(request_id, "finished", artifacts=artifacts)
        writer.end_request("empty", "finished", artifacts=(writer.audio("empty", SILENCE),))
        writer.end_request("broken", "failed", error=ErrorRecord(message="m", fault="server"))
        writer.end_request("again", "cancelled")
    (run.request_folder("lost") / "audio.wav").unlink()
    (run.request_folder("cut") / "audio.wav").write_bytes(b"RIFF")
    assert sorted(finished(run)) == ["done", "empty"]


def test_opening_a_run_again_clears_what_a_killed_writer_left(run: RunFolder) -> None:
    half = run.path / ".0123456789abcdef.tmp"
    half.write_bytes(b"half")
    with ArtifactWriter(run):
        assert not half.exists()


def test_samples_that_are_no_sound_leave_no_file(run: RunFolder) -> None:
    with ArtifactWriter(run) as writer, pytest.raises(ArtifactError):
        writer.audio("a", Waveform(samples=np.zeros(10, np.float32), rate_hz=768_000), audio_format="flac")
    assert [path.name for path in run.path.iterdir()] == ["results.jsonl"]


def test_writer_and_server_share_one_encoding(run: RunFolder) -> None:
    from omni_cli.artifacts.audio import encode

    with ArtifactWriter(run) as writer:
        record = writer.audio("a", SOUND)
    assert record.path is not None
    data = (run.path / record.path).read_bytes()
    assert data == encode(SOUND).data
    assert soundfile.info(io.BytesIO(data)).samplerate == 24_000


def test_importing_the_writer_loads_no_model_code() -> None:
    code = (
        "import sys, omni_cli.artifacts.writer, omni_cli.artifacts.manifest\n"
        "print(sorted({'torch', 'transformers', 'hydra', 'av', 'PIL.Image', 'fastapi'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
