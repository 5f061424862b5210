"""Reports about what a request holds: media that is not what it claims, degenerate images, blank prompts, odd texts."""

import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from omni_cli.batch.options import RunOptions
from omni_cli.batch.run import judge
from omni_cli.inputs.decode import decode
from tests.integration.cli import (
    Ended,
    batch,
    check_trace,
    judged,
    leaves_nothing,
    omni,
    read_events,
    refused,
    start,
)
from tests.unit.omni_cli.config.test_overrides import PROMPTS
from tests.unit.omni_cli.inputs.media_samples import clip, picture, sound, tone
from tests.unit.omni_cli.inputs.test_inputs_image import png_header

WAV = sound(tone(1, 24_000), 24_000)
NOISE = Image.effect_noise((64, 48), 80)


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return picture(NOISE.convert("RGB"), "JPEG", exif=exif)


SOUNDS = {
    "stereo.wav": sound(np.stack([tone(1, 24_000)] * 2, axis=1), 24_000),
    "8bit.wav": sound(tone(1, 24_000), 24_000, "WAV", "PCM_U8"),
    "96khz.wav": sound(tone(1, 96_000), 96_000),
    "10ms.wav": sound(tone(0.01, 24_000), 24_000),
    "aac.wav": clip("mp4", None, audio_codec="aac", audio=tone(1, 48_000)),
}
IMAGES = {
    "1x1.png": picture(Image.new("RGB", (1, 1), "red")),
    "1x4000.png": picture(Image.new("RGB", (1, 4000), "red")),
    "4000x1.png": picture(Image.new("RGB", (4000, 1), "red")),
    "cmyk.jpg": picture(NOISE.convert("CMYK"), "JPEG"),
    "rgba.png": picture(NOISE.convert("RGBA")),
    "palette.gif": picture(NOISE.convert("P"), "GIF"),
    "16bit.png": picture(Image.fromarray((np.arange(64 * 48).reshape(48, 64) * 20).astype(np.uint16))),
    "rotated.jpg": rotated(),
}
BAD_SOUNDS = {
    "text.wav": (b"these are words", "holds plain text, not audio"),
    "nothing.wav": (b"", "is empty (0 bytes)"),
    "header.wav": (WAV[:44], "is cut short"),
    "half.wav": (WAV[: len(WAV) // 2], "is cut short: its header declares 48000 bytes of samples, 23978 are there"),
    "image.wav": (IMAGES["1x1.png"], "holds PNG, not audio"),
}
BAD_IMAGES = {
    "bomb.png": (png_header(50_000, 50_000), "has too many pixels"),
    "drawing.png": (b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", "holds an SVG drawing"),
    "cut.jpg": (IMAGES["cmyk.jpg"][:300], "cannot be decoded as JPEG"),
}
BAD = BAD_SOUNDS | BAD_IMAGES


@pytest.fixture(scope="module")
def media(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("media of a user")
    for name, data in {**SOUNDS, **IMAGES, **{name: data for name, (data, _) in BAD.items()}}.items():
        (folder / name).write_bytes(data)
    return folder


def asking(names: dict, key: str) -> list[dict]:
    return [{"id": name.replace(".", "-"), "prompt": "what?", key: [name], "modalities": ["text"]} for name in names]


ASKED = asking({**SOUNDS, **BAD_SOUNDS}, "audios") + asking({**IMAGES, **BAD_IMAGES}, "images")


@pytest.fixture(scope="module")
def answered(media) -> Ended:
    """All media in one batch, good and bad; the text is the decoded medium's checksum and the prompt."""
    with leaves_nothing():
        return batch(media, ASKED, "recipe=synthetic", "--out", "synthetic")


@pytest.mark.parametrize("name", [*SOUNDS, *IMAGES])
def test_r35_r61_media_of_every_kind_reach_the_model(media, answered, name):
    if name in SOUNDS:
        data, kind = decode("audio", media / name).array, "audio"
    else:
        data, kind = decode("image", media / name).array, "image"
    assert answered.text(name.replace(".", "-")) == f"[{kind}:{zlib.crc32(data.tobytes()):08x}]what?"


@pytest.mark.parametrize("name", BAD)
def test_r35_r61_a_bad_medium_is_refused_alone_and_fails_only_its_own_request_in_a_batch(media, answered, name):
    noun, option = ("audio", "audios") if name in BAD_SOUNDS else ("image", "images")
    said = judged(prompt="what?", **{option: (str(media / name),)})
    assert said.startswith(f"{noun} file {media / name}: ")
    assert BAD[name][1] in said
    request = name.replace(".", "-")
    result = answered.results[request]
    assert (result["status"], result["error"]["fault"], result["error"]["message"]) == ("failed", "client", said)
    line = [asked["id"] for asked in ASKED].index(request) + 1
    assert answered.err.count(f"failed: batch.jsonl:{line}: {said}\n") == 1


def test_r35_nothing_is_started_for_bad_media_and_no_command_line_leaks(media):
    (media / "turns.json").write_text(
        json.dumps([{"role": "user", "content": [{"type": "audio", "audio": "half.wav"}]}])
    )
    said = refused("recipe=synthetic", "--messages", "turns.json", cwd=media)
    assert said == f"omni: messages[0].content[0] ({media / 'half.wav'}): {BAD_SOUNDS['half.wav'][1]}\n"


def test_r35_r61_only_good_requests_reach_a_stage(answered):
    assert answered.code == 1
    assert f"{len(BAD)} of {len(ASKED)} requests failed\n" in answered.err
    admitted = {event["request_id"] for event in answered.events if event["kind"] == "request_admitted"}
    assert admitted == {name.replace(".", "-") for name in (*SOUNDS, *IMAGES)}
    check_trace(answered.run)


def test_r61_a_decompression_bomb_costs_no_memory(media):
    peaks = []
    for name in ("cut.jpg", "bomb.png"):
        process = start("run", "recipe=synthetic", "--prompt", "a", "--image", name, cwd=media)
        said = process.stderr.read()
        process.stdout.close()
        process.stderr.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 2, said
        assert name in said
        peaks.append(usage.ru_maxrss)
    assert peaks[1] - peaks[0] <= 200 * 1024


def test_r35_r61_the_real_processor_answers_or_refuses_each_and_survives_all(media):
    """Qwen's own limits: what it cannot take is the request's fault, and no other request pays for it."""
    words = ("recipe=qwen3_omni", "model.path=tiny", "request.sampling.thinker.max_tokens=2", "--out", "qwen3_omni")
    with leaves_nothing():
        ended = batch(media, asking(SOUNDS, "audios") + asking(IMAGES, "images"), *words)
    failed = {name: result for name, result in ended.results.items() if result["status"] != "finished"}
    assert set(failed) == {"1x4000-png", "4000x1-png"}
    for result in failed.values():
        assert (result["error"]["stage"], result["error"]["fault"]) == ("thinker", "client")
        assert "one side is over 200 times the other" in result["error"]["message"]
    assert ended.code == 1
    check_trace(ended.run)


# Ways to say nothing. The key of a batch line, of an option, or both.
BLANK = ["", "   ", "\n", "\u3000", None]


def test_r50_a_request_that_says_nothing_never_reaches_a_stage(tmp_path):
    lines = [{"prompt": text} for text in BLANK]
    lines += [{}, {"messages": []}, {"messages": [{"role": "user", "content": []}]}, {"messages": None}]
    lines += [{"messages": [{"role": "user", "content": "  "}]}, {"messages": [{"role": "system", "content": "be"}]}]
    ended = batch(tmp_path, [*lines, {"id": "good", "prompt": "."}], "recipe=synthetic")
    assert ended.code == 1
    assert f"{len(lines)} of {len(lines) + 1} requests failed" in ended.err
    for number in range(1, len(lines) + 1):
        assert f"failed: batch.jsonl:{number}: " in ended.err
    assert [event["request_id"] for event in ended.events if event["kind"] == "request_admitted"] == ["good"]
    said = refused("recipe=synthetic", "--input", "batch.jsonl", cwd=_only(tmp_path, lines))
    assert "no line is a valid request" in said
    assert "batch.jsonl:1: prompt: is empty or blank" in said


def _only(folder: Path, lines: list) -> Path:
    (folder / "blank").mkdir()
    (folder / "blank" / "batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "blank"


@pytest.mark.parametrize("text", BLANK)
def test_r50_a_blank_prompt_is_refused_unless_a_medium_says_something(media, text):
    assert judged(prompt=text) == "prompt: is empty or blank: give text, or media that the model takes"
    options = RunOptions(prompt=text, images=(str(media / "1x1.png"),))
    _, _, (task,) = judge(("recipe=synthetic",), options)
    assert task.error is None


def test_r50_a_blank_file_is_refused(tmp_path):
    (tmp_path / "blank.txt").write_text(" \n")
    assert "is empty or blank" in judged(prompt_file=str(tmp_path / "blank.txt"))


def test_r80_prompts_in_the_configuration_point_to_the_way_out():
    said = judged(*(f"request.prompt={text}" for text in PROMPTS))
    assert "request.prompt" in said
    assert "--prompt TEXT, --prompt-file PATH (- is stdin)" in said
    assert "Lexer" not in said


SPEAKING = [text for text in PROMPTS if text.strip()]


def test_r80_every_prompt_of_a_batch_arrives_code_point_by_code_point(tmp_path):
    lines = [{"id": f"n{n}", "prompt": text, "modalities": ["text"]} for n, text in enumerate(SPEAKING)]
    ended = batch(tmp_path, lines, "recipe=synthetic")
    assert ended.code == 0
    assert [ended.text(f"n{n}") for n in range(len(SPEAKING))] == SPEAKING


ODD = " \t" + "\n".join(SPEAKING) + "\r\n\u2028 e\u0301 \U0001f469\u200d\U0001f467 end "


@pytest.mark.parametrize("given", [("--prompt", ODD), ("--prompt-file", "-")], ids=["argument", "stdin"])
def test_r80_one_prompt_arrives_exactly_whichever_way_it_is_given(tmp_path, given):
    words = ("recipe=synthetic", *given, "--modalities", "text", "-q", "--out", "run")
    ended = omni("run", *words, cwd=tmp_path, stdin=ODD.encode("utf-8"))
    assert (ended.code, ended.out) == (0, ODD + "\n")
    assert (tmp_path / "run/request/text.txt").read_bytes().decode("utf-8") == ODD


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_r80_a_prompt_file_is_taken_exactly_but_for_its_last_line_end(tmp_path, end):
    (tmp_path / "a prompt.txt").write_bytes(f"\ufeff{ODD}{end}".encode())
    _, _, (task,) = judge(("recipe=synthetic",), RunOptions(prompt_file=str(tmp_path / "a prompt.txt")))
    assert task.line.prompt == ODD


def test_r80_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    said = judged(prompt_file=str(tmp_path / "binary"))
    assert said == f"prompt file {tmp_path / 'binary'}: is not UTF-8 text (byte 128): save it as UTF-8"
    assert refused("recipe=synthetic", "--prompt", os.fsdecode(b"\xff"), cwd=tmp_path) == (
        "omni: prompt: holds a lone surrogate, which is no character\n"
    )


def test_r85_paths_mean_what_they_mean_in_the_shell(media, tmp_path):
    home = tmp_path / "a folder, with spaces"
    (home / "recipes of mine").mkdir(parents=True)
    (home / "recipes of mine" / "short.yaml").write_text("defaults: [synthetic]\nsynthetic: {frames: 2}\n")
    (home / "a.wav").write_bytes(SOUNDS["10ms.wav"])
    said = omni(
        "run", "recipe=./recipes of mine/short.yaml", "--audio", "./a.wav", "--audio", "../a folder, with spaces/a.wav",
        "--out", "out/run", "-q", cwd=home,
    )  # fmt: skip
    assert said.code == 0, said.err
    crc = zlib.crc32(decode("audio", home / "a.wav").array.tobytes())
    assert (home / "out/run/request/text.txt").read_text() == f"[audio:{crc:08x}]" * 2
    assert not (home / "outputs").exists()
    assert len(read_events(home / "out/run/trace.jsonl")) > 10


def test_r85_a_missing_file_shows_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "no/a.wav") in judged(prompt="a", audios=("no/a.wav",))
    assert str(tmp_path / "p.txt") in judged(prompt_file="p.txt")
    assert str(tmp_path / "m.json") in judged(messages="./m.json")
    assert str(tmp_path / "b.jsonl") in judged(input="b.jsonl")
    assert str(tmp_path / "mine.yaml") in judged(recipe="./mine.yaml", prompt="a")
    assert "refused" in judged("hydra.job.chdir=true", prompt="a")
