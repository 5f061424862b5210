import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from omni_cli.errors import InputError
from omni_cli.inputs import source
from omni_cli.inputs.decode import decode
from omni_cli.inputs.limits import InputLimits
from omni_cli.inputs.source import open_source
from omni_cli.inputs.text import decode_text, require_content
from tests.unit.omni_cli.inputs.media_samples import sound, tone


def test_a_relative_path_means_what_it_means_in_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "a.wav").write_bytes(sound(tone(0.1, 16_000), 16_000))
    monkeypatch.chdir(folder)
    assert decode("audio", Path("./a.wav")).label == f"audio file {folder / 'a.wav'}"
    with pytest.raises(InputError) as failure:
        decode("audio", Path("../b.wav"))
    assert str(failure.value) == f"audio file {tmp_path / 'b.wav'}: cannot be read: No such file or directory"


def test_without_a_free_descriptor_it_says_which_limit_to_raise(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(sound(tone(0.1, 16_000), 16_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(InputError, match=r"Too many open files: .* raise `ulimit -n`"):
            open_source(tmp_path / "a.wav", noun="audio", label=None, max_bytes=1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_source(tmp_path / "a.wav", noun="audio", label=None, max_bytes=1 << 20).data


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_is_no_file(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError, match=r"cannot be read|is not a path"):
        decode("image", tmp_path / path)


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    with path.open("wb") as file:
        file.truncate(10**12)  # sparse: reading it would end the test run
    with pytest.raises(InputError, match="is larger than the limit of 1000 bytes"):
        decode("image", path, limits=InputLimits(max_image_bytes=1000))


def test_a_device_without_end_is_read_up_to_the_limit() -> None:
    with pytest.raises(InputError, match="is larger than the limit of 1000 bytes"):
        open_source(Path("/dev/zero"), noun="audio", label=None, max_bytes=1000)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    wav = sound(tone(1, 16_000), 16_000)
    writer = threading.Thread(target=pipe.write_bytes, args=(wav,))
    writer.start()
    assert len(decode("audio", pipe).array) == 16_000
    writer.join()


def test_a_pipe_without_a_writer_is_refused_and_a_slow_writer_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_WRITER_WAIT_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=r"pipe: is a pipe, and nobody has opened it to write for 0\.05 s"):
        decode_text(pipe)

    ends = os.pipe()
    writer = threading.Timer(0.2, lambda: os.write(ends[1], b"late") and os.close(ends[1]))
    writer.start()
    assert decode_text(Path(f"/dev/fd/{ends[0]}")) == "late"
    os.close(ends[0])


def test_bytes_without_a_label() -> None:
    with pytest.raises(InputError, match=r"^image: holds plain text"):
        decode("image", b"text")


def test_text_is_utf_8_and_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes("\ufeff  こんにちは, ${x} a=b \n".encode())
    assert decode_text(path) == "  こんにちは, ${x} a=b \n"
    with pytest.raises(InputError, match=r"line: is not UTF-8 text \(byte 1\)"):
        decode_text(b"a\xff", label="line")


@pytest.mark.parametrize("texts", [[], [""], ["   "], ["\n"], [None], [None, "", "\t"]])
def test_a_request_that_says_nothing(texts: list[str | None]) -> None:
    with pytest.raises(InputError, match="prompt: is empty or blank: give text, or media") as failure:
        require_content(texts, media_count=0, label="prompt")
    assert failure.value.param == "prompt"
    require_content(texts, media_count=1, label="prompt")
    require_content([*texts, " x"], media_count=0, label="prompt")


def test_a_lone_surrogate_is_no_text() -> None:
    with pytest.raises(InputError, match="lone surrogate"):
        require_content(["ok \ud800"], media_count=0, label="messages")


def test_importing_the_way_in_loads_no_decoder() -> None:
    code = (
        "import sys, omni_cli.inputs.decode\n"
        "print(sorted({'torch', 'av', 'hydra', 'PIL.Image', 'soundfile', 'soxr'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
