"""Reports of users about the media of a request over HTTP, each as a test: media is media, or a 4xx with its place."""

import base64
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.integration.test_reports_inputs import BAD_IMAGES, BAD_SOUNDS, IMAGES, NOISE, SOUNDS
from tests.recipes import media
from tests.server.serving import Server, refused, says
from tests.unit.omni_cli.inputs.media_samples import picture, sound, tone


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_in(url: str) -> bytes:
    return base64.b64decode(url.partition(",")[2])


def part(kind: str, url: str) -> dict:
    return {"type": kind, kind: {"url": url}}


def spoken(data: str, form: str = "wav") -> dict:
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


PNG, WAV, MP4 = picture(NOISE), sound(tone(0.1, 16_000), 16_000), data_in(media.video_url())
DIALECTS = {
    "plain": "data:{type};base64,{data}",
    "upper case": "DATA:{type};BASE64,{data}",
    "a parameter": "data:{type};charset=x;base64,{data}",
    "no type": "data:;base64,{data}",
    "another type": "data:audio/x-wav;base64,{data}",
    "line breaks": "data:{type};base64,{lines}",
    "no padding": "data:{type};base64,{bare}",
    "URL-safe": "data:{type};base64,{safe}",
}


def dialects(data: bytes, media_type: str) -> list[str]:
    text = b64(data)
    lines = "\n".join(re.findall(".{1,60}", text))
    safe = text.replace("+", "-").replace("/", "_")
    return [
        form.format(type=media_type, data=text, lines=lines, bare=text.rstrip("="), safe=safe)
        for form in DIALECTS.values()
    ]


@pytest.mark.parametrize(
    ("kind", "data", "media_type"),
    [("image", PNG, "image/png"), ("audio", WAV, "audio/wav"), ("video", MP4, "video/mp4")],
    ids=["image", "audio", "video"],
)
def test_r46_every_dialect_of_a_data_url_is_the_same_medium(server, kind, data, media_type):
    name = f"{kind}_url"
    found = {says(server, part(name, url)) for url in dialects(data, media_type)}
    if kind == "audio":
        found |= {says(server, spoken(text)) for text in (b64(data), *dialects(data, media_type))}
    assert re.fullmatch(rf"\[{kind}:[0-9a-f]{{8}}\]", found.pop())
    assert not found


@pytest.mark.parametrize("kind", ["image_url", "audio_url", "video_url"])
@pytest.mark.parametrize("url", ["data:,abc", "data:image/png;base64,@@@@", "data:x;base64,", "nonsense", "ftp://a/b"])
def test_r46_what_is_no_data_url_is_refused_with_its_place(server, kind, url):
    message = says(server, {"type": "text", "text": "look"}, part(kind, url), status=400)
    assert "messages[0].content[1]" in message


def test_r46_a_format_that_is_not_that_of_the_data_is_refused(server):
    flac = sound(np.zeros(1600, np.float32), 16_000, "FLAC")
    assert "messages[0].content[0]" in says(server, spoken(b64(flac)), status=400)


@pytest.mark.parametrize(
    ("kind", "url"), [("image", media.image_url()), ("audio", media.audio_url()), ("video", media.video_url())],
    ids=["image", "audio", "video"],
)  # fmt: skip
def test_r47_a_bare_string_is_media_and_never_text(server, qwen, kind, url):
    name = f"{kind}_url"
    assert says(server, {"type": name, name: url}) == says(server, part(name, url))
    tokens = [
        qwen.chat(messages=[{"role": "user", "content": [{"type": "text", "text": "look"}, *more]}],
                  modalities=["text"], max_tokens=1).json()["usage"]["prompt_tokens"]
        for more in ([], [{"type": name, name: url}])
    ]  # fmt: skip
    assert tokens[0] < tokens[1] < 5000


def test_r47_an_unknown_part_is_refused(server):
    says(server, {"type": "smell"}, status=400)
    says(server, {"image_url": {"url": media.image_url()}}, status=400)


@pytest.mark.parametrize("name", [*SOUNDS, *(name for name in IMAGES if name != "rotated.jpg")])
def test_r35_r61_what_is_odd_is_taken(server, name):
    kind = "audio" if name in SOUNDS else "image"
    data = {**SOUNDS, **IMAGES}[name]
    assert says(server, part(f"{kind}_url", f"data:;base64,{b64(data)}")).startswith(f"[{kind}:")


def test_r61_a_picture_is_seen_upright(server):
    exif = Image.Exif()
    exif[0x0112] = 6  # the top of the picture is at its right
    turned = picture(NOISE, exif=exif)
    upright = picture(NOISE.transpose(Image.Transpose.ROTATE_270))
    seen = [says(server, part("image_url", f"data:;base64,{b64(data)}")) for data in (turned, upright, picture(NOISE))]
    assert seen[0] == seen[1] != seen[2]


def peak_kib(server: Server) -> int:
    """The most memory that the process which decodes media ever had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


@pytest.mark.parametrize("name", [*BAD_SOUNDS, *BAD_IMAGES, "large.png"])
def test_r35_r61_what_is_none_or_too_large_is_refused_at_no_cost(server, name):
    large = {"large.png": (picture(Image.new("RGB", (1001, 1000))), "over the limit of 1000000")}
    data, said = {**BAD_SOUNDS, **BAD_IMAGES, **large}[name]
    before = peak_kib(server)
    kind = "audio_url" if name in BAD_SOUNDS else "image_url"
    message = says(server, {"type": "text", "text": "what?"}, part(kind, f"data:;base64,{b64(data)}"), status=400)
    assert message.startswith("messages[0].content[1]")
    assert data == b"" or said.partition(" (")[0] in message
    assert peak_kib(server) - before < 200 << 10
    assert "Traceback" not in message


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "{url}/v1/models",
        "http://169.254.169.254/",
        "http://[::1]/",
        "http://[",
        "http://a:99999/",
        "file://elsewhere/etc/passwd",
        "{root}/../../../etc/passwd",
        "{root}/outside",
        "{root}/%00",
        "{root}/nothing",
        "{root}",
    ],
)
@pytest.mark.parametrize("kind", ["image_url", "audio_url", "video_url"])
def test_r62_no_url_reads_this_machine(server, media_root, kind, url):
    message = says(server, part(kind, url.format(url=server.url, root=media_root.as_uri())), status=400)
    assert message.startswith("messages[0].content[0]: ")
    assert "root:" not in message


def test_r62_a_file_below_the_root_is_read(server, media_root):
    inside = says(server, part("image_url", f"{media_root.as_uri()}/inside.png"))
    assert inside == says(server, part("image_url", f"data:;base64,{b64((media_root / 'inside.png').read_bytes())}"))


def test_r34_the_last_second_of_a_long_recording_is_heard(qwen):
    silence = np.zeros(31 * 16_000, np.float32)
    digit = np.concatenate([silence[: 30 * 16_000], tone(1, 16_000)])
    clips = [silence[: 30 * 16_000], silence, digit]
    answers = [
        qwen.chat(messages=[{"role": "user", "content": [spoken(b64(sound(clip, 16_000, "FLAC")), "flac")]}],
                  modalities=["text"], max_tokens=1, logprobs=True, temperature=0).json()
        for clip in clips
    ]  # fmt: skip
    tokens = [answer["usage"]["prompt_tokens"] for answer in answers]
    assert tokens[0] < tokens[1] == tokens[2]
    heard = [answer["choices"][0]["logprobs"]["content"] for answer in answers]
    assert heard[1] != heard[2]


def test_r34_a_recording_of_20_minutes_is_refused_with_the_limit(server):
    long = b64(sound(np.zeros(20 * 60 * 8000, np.float32), 8000, "FLAC"))
    error = refused(server, messages=[{"role": "user", "content": [spoken(long, "flac")]}])
    assert "1200" in error["message"]
    assert "600" in error["message"]
    assert error["param"] == "messages[0].content[0]"
