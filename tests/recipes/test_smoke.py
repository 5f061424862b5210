"""Every smoke recipe is run as its header says, with the requests that belong to it, and its trace is clean.

The pace is not judged here; `--durations` shows it, and the traces have it.
"""

import json
import re
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from omni_cli.artifacts.audio import to_pcm16
from omni_cli.config.library import bundled
from omni_cli.eval.judges import Judges
from omni_cli.inputs.conversation import from_prompt
from tests.integration.cli import Ended, check_trace, leaves_nothing, omni
from tests.recipes import media
from tests.synthetic_answers import expected_audio, expected_mix

REQUESTS = bundled("recipes") / "requests"
NAMES = sorted(path.stem for path in (bundled("recipes") / "smoke").glob("*.yaml"))


def requests_of(name: str) -> dict[str, dict]:
    lines = (REQUESTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return {line["id"]: line for line in map(json.loads, lines)}


def command_of(name: str) -> list[str]:
    """The words after `omni` on the line `# Run:` of the recipe's header."""
    header = (bundled("recipes") / f"smoke/{name}.yaml").read_text(encoding="utf-8")
    (command,) = re.findall(r"^# Run: +omni (.+)$", header, re.MULTILINE)
    return command.split()


def answered(ended: Ended, request: dict) -> None:
    """A request without weights is echoed, and sounds as its text and its seed say."""
    expected = {"audio": expected_audio, "audio_mix": expected_mix}
    for artifact in ended.results[request["id"]]["artifacts"]:
        output = artifact["output"]
        if output == "text":
            assert ended.text(request["id"]) == request["prompt"]
        elif artifact["state"] == "empty":
            assert request["synthetic"]["frames"] == 0
        else:
            sound = np.array(expected[output](request["prompt"], request["seed"]))
            assert np.array_equal(to_pcm16(ended.audio(request["id"], f"{output}.wav")[0]), to_pcm16(sound))


def outputs(ended: Ended, request_id: str) -> dict[str, str]:
    return {artifact["output"]: artifact["state"] for artifact in ended.results[request_id]["artifacts"]}


def processes(ended: Ended) -> set[str]:
    return {event["process"] for event in ended.events if event["kind"] == "process_started"}


def text(ended: Ended) -> None:
    assert processes(ended) == {"thinker.0"}
    assert outputs(ended, "umlauts") == {"text": "written"}


def speech(ended: Ended) -> None:
    assert outputs(ended, "speech") == {"text": "written", "audio": "written"}
    assert outputs(ended, "silence") == {"text": "written", "audio": "empty"}
    for producer in ("thinker.0", "talker.0"):
        puts = [e["uid"] for e in ended.events if e["kind"] == "message_put" and e["src"] == producer]
        assert len(puts) > len(set(puts)), f"{producer} streamed nothing"


def batch(ended: Ended) -> None:
    submitted = [event["process"] for event in ended.events if event["kind"] == "stage_submitted"]
    assert {"talker.0", "talker.1"} < set(submitted)
    assert submitted.count("talker.0") + submitted.count("talker.1") == 12


def dag(ended: Ended) -> None:
    assert len(processes(ended)) == 5
    assert outputs(ended, "everything") == {"text": "written", "audio": "written", "audio_mix": "written"}
    assert outputs(ended, "spoken") == {"audio": "written"}
    assert outputs(ended, "mixed") == {"text": "written", "audio_mix": "written"}


def failure(ended: Ended) -> None:
    errors = {name: result["error"] for name, result in ended.results.items() if result["status"] == "failed"}
    assert {name: (error["kind"], error.get("stage")) for name, error in errors.items()} == {
        "thinker": ("RuntimeError", "thinker"),
        "memory": ("MemoryError", "talker"),
        "late": ("DeadlineExceeded", "talker"),
        "unknown": ("InputError", None),
    }
    for name, error in errors.items():
        assert f": {error['message']}\n" in ended.err, name
    assert "\n4 of 6 requests failed\n" in ended.err


def image(ended: Ended) -> None:
    assert processes(ended) == {"thinker.0"}
    assert "a red square on a white background" in ended.text("image")
    assert any(event["kind"] == "media_put" for event in ended.events)


def audio(ended: Ended) -> None:
    assert ended.text("audio")
    samples, rate_hz = ended.audio("audio")
    assert rate_hz == 24_000
    assert np.abs(samples).max() > 0


def video(ended: Ended) -> None:
    (request,) = requests_of("video").values()
    (frames,) = from_prompt(None, videos=request["videos"]).media.tensors
    assert ended.text("video") == f"[video:{zlib.crc32(frames.data):08x}]{request['prompt']}"


def draw(ended: Ended) -> None:
    assert processes(ended) == {"painter.0"}
    drawn = {name: result["artifacts"][0] for name, result in ended.results.items()}
    sizes = {name: (artifact["width"], artifact["height"]) for name, artifact in drawn.items()}
    assert sizes == {**dict.fromkeys(("heart", "two-0", "two-1", "again"), (64, 64)), "wide": (96, 32)}
    assert drawn["again"]["warnings"] == ["the given picture is 8x8 and was scaled to 64x64"]
    assert [ended.results[name]["seed"] for name in ("two-0", "two-1")] == [1, 2]
    names = {event["uid"]: event["request_id"] for event in ended.events if event["kind"] == "request_admitted"}
    rows = [row for event in ended.events if event["kind"] == "step_done" for row in event["rows"]]
    steps = Counter(names[row["uid"]] for row in rows if row["phase"] == "denoise")
    assert steps == {"heart": 4, "wide": 7, "two-0": 4, "two-1": 4, "again": 2}  # half of its steps are the picture's
    judges = Judges(Path(json.loads((ended.run / "plan.json").read_bytes())["model"]["path"]))
    for name, artifact in drawn.items():
        with Image.open(ended.run / artifact["path"]) as picture:
            assert picture.format == ("WEBP" if name.startswith("two") else "PNG")
            assert picture.size == sizes[name]
            assert np.asarray(picture).std() > 10
            if name in ("heart", "two-1"):
                seen = judges.pictures(np.array(picture.convert("RGB")))
                wanted = {"heart": ("red heart", "blue"), "two-1": ("green circle", "white")}[name]
                assert (seen["thing"], seen["background"]) == wanted
            if name == "wide":
                told = {"negative_prompt": "warm", "true_cfg_scale": "2.5", "seed": "1", "size": "96x32", "steps": "7"}
                assert picture.text.items() >= {"prompt": "a yellow star on a black background", **told}.items()


ECHOED = {"text": text, "speech": speech, "batch": batch, "dag": dag, "failure": failure}
OTHERS = {"image": image, "audio": audio, "video": video, "draw": draw}


@pytest.mark.parametrize("name", NAMES)
def test_a_smoke_recipe_does_what_it_says(tmp_path, name):
    command = command_of(name)
    assert command == ["run", f"recipe=smoke/{name}", "--input", f"recipes/requests/{name}.jsonl"]
    (tmp_path / "recipes").symlink_to(bundled("recipes"))
    with leaves_nothing():
        ended = omni(*command, cwd=tmp_path)
    assert ended.code == (1 if name == "failure" else 0), ended.err
    check_trace(ended.run)
    if name in ECHOED:
        for request in requests_of(name).values():
            if ended.results[request["id"]]["status"] == "finished":
                answered(ended, request)
    {**ECHOED, **OTHERS}[name](ended)


def test_every_smoke_recipe_has_its_requests_and_they_have_one():
    assert sorted(path.stem for path in REQUESTS.iterdir()) == NAMES


def test_the_media_in_the_requests_are_those_that_are_drawn_by_rule():
    for name, kind, url in (
        ("image", "images", media.image_url()),
        ("audio", "audios", media.audio_url()),
        ("video", "videos", media.video_url()),
    ):
        (request,) = requests_of(name).values()
        (stored,), (drawn,) = (from_prompt(None, **{kind: urls}).media.tensors for urls in (request[kind], [url]))
        assert stored.shape == drawn.shape
        if kind != "videos":  # which an encoder of another version encodes in another way
            assert bytes(stored.data) == bytes(drawn.data)
