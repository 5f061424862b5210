import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from omni_cli.artifacts import atomic
from omni_cli.errors import ArtifactError


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    """A real refusal by the kernel in the middle of a write (EFBIG), as a full disk gives ENOSPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    atomic.write_bytes(path, b"one")
    atomic.write_bytes(path, b"three")
    assert path.read_bytes() == b"three"
    assert list(tmp_path.iterdir()) == [path]


def test_the_umask_decides_the_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        atomic.write_bytes(tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_write_that_the_kernel_stops_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    atomic.write_bytes(path, b"old")
    with file_size_limit(1000), pytest.raises(ArtifactError) as failure:
        atomic.write_bytes(path, bytes(5000))
    assert str(failure.value) == (
        f"{path}: cannot be written: File too large: the file size limit (ulimit -f) is in the way"
    )
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "open"])
@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "free some space there"), (errno.EACCES, "a folder that you may write to"), (errno.EIO, "")],
)
def test_every_step_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, remedy: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(ArtifactError) as failure:
            atomic.write_bytes(tmp_path / "audio.wav", b"data")
    assert str(tmp_path / "audio.wav") in str(failure.value)
    assert os.strerror(code) in str(failure.value)
    assert remedy in str(failure.value)
    assert (failure.value.fault, failure.value.exit_code) == ("server", 1)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        atomic.write_bytes(tmp_path / "a", b"data")
    assert list(tmp_path.iterdir()) == []


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    atomic.write_bytes(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(ArtifactError, match="x/y: cannot be written"):
        atomic.make_folder(tmp_path / "x" / "y")
    with pytest.raises(ArtifactError, match="x/a: cannot be written"):
        atomic.write_bytes(tmp_path / "x" / "a", b"data")


def test_only_our_own_temporaries_are_removed(tmp_path: Path) -> None:
    (tmp_path / "r1").mkdir()
    ours = tmp_path / "r1" / ".0123456789abcdef.tmp"
    theirs = tmp_path / "r1" / ".notes.tmp"
    ours.write_bytes(b"half")
    theirs.write_bytes(b"kept")
    atomic.remove_temporaries(tmp_path)
    assert list((tmp_path / "r1").iterdir()) == [theirs]


def test_a_lone_surrogate_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot be written as UTF-8: .* \(character 2\)"):
        atomic.write_text(tmp_path / "text.txt", "ok\ud800")
    assert list(tmp_path.iterdir()) == []


def test_text_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    code = (
        "import codecs, datetime, locale, pathlib\n"
        "from omni_cli.artifacts.manifest import Manifest, installed_versions\n"
        "from omni_cli.artifacts.run_folder import RunFolder\n"
        "from omni_cli.artifacts.writer import ArtifactWriter\n"
        "from omni_cli.inputs.text import decode_text\n"
        "assert codecs.lookup(locale.getpreferredencoding(False)).name == 'ascii'\n"
        "now = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)\n"
        "run = RunFolder.create(recipe='r', started_at=now)\n"
        "text = decode_text(pathlib.Path('prompt.txt'))\n"
        "with ArtifactWriter(run) as writer:\n"
        "    record = writer.end_request('r\\u00e9q', 'finished', artifacts=(writer.text('r\\u00e9q', text),))\n"
        "    writer.manifest(Manifest(recipe='r', status='finished', started_at=now,\n"
        "        versions=installed_versions(), requests=(record,)))\n"
    )
    (tmp_path / "prompt.txt").write_bytes("こんにちは\r\n".encode())
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    (run,) = (tmp_path / "outputs" / "r").iterdir()
    (text,) = run.glob("*/text.txt")
    assert text.read_bytes() == "こんにちは\r\n".encode()
    assert '"request_id": "réq"' in (run / "results.jsonl").read_text("utf-8")
    assert (run / "manifest.json").read_bytes().isascii()
