import struct
import sys

import numpy as np
import pytest
from PIL import Image

from omni_cli.errors import InputError
from omni_cli.inputs.decode import decode
from omni_cli.inputs.limits import InputLimits
from tests.unit.omni_cli.inputs.media_samples import clip, picture, tone


def ramp(count: int = 20, height: int = 48, width: int = 64) -> np.ndarray:
    """Frame i is grey of level 10 i; the left half of each is 40 brighter."""
    frames = np.repeat(np.arange(count, dtype=np.uint8) * 10, height * width * 3)
    frames = frames.reshape(count, height, width, 3)
    frames[:, :, : width // 2] += 40
    return frames


@pytest.mark.parametrize(
    ("container", "codec", "pixel_format"),
    [
        ("mp4", "libx264", "yuv420p"),
        ("mov", "mpeg4", "yuv420p"),
        ("webm", "libvpx-vp9", "yuv420p"),
        ("matroska", "libx264", "yuv420p"),
        ("avi", "mpeg4", "yuv420p"),
        ("mpegts", "libx264", "yuv420p"),
        ("gif", "gif", "rgb8"),
    ],
)
def test_formats(container: str, codec: str, pixel_format: str) -> None:
    decoded = decode("video", clip(container, codec, ramp(), pixel_format=pixel_format))
    assert decoded.array.dtype == np.uint8
    assert decoded.array.shape == (20, 48, 64, 3)
    assert decoded.fps == 10.0
    assert decoded.notes == ()
    tolerance = 40 if container == "gif" else 8
    assert np.abs(decoded.array.astype(int) - ramp()).mean() < tolerance


def test_one_frame() -> None:
    assert decode("video", clip("mp4", "libx264", ramp(1))).array.shape == (1, 48, 64, 3)


def test_a_sound_track_is_named_and_can_be_had() -> None:
    movie = clip("mp4", "libx264", ramp(), audio_codec="aac", audio=tone(2, 24_000), rate=24_000)
    decoded = decode("video", movie)
    assert decoded.notes == ("its sound track is not used",)
    assert decode("audio", movie).sha256 == decoded.sha256


def test_sampling_keeps_frames_evenly_spaced_in_time() -> None:
    decoded = decode("video", clip("mp4", "libx264", ramp()), sample_fps=2.0)
    assert decoded.fps == 2.0
    assert decoded.notes == ("4 of 20 frames kept",)
    levels = decoded.array[:, :, 40:].mean(axis=(1, 2, 3))
    np.testing.assert_allclose(levels, [0, 50, 100, 150], atol=6)


def test_sampling_faster_than_the_source_keeps_every_frame() -> None:
    decoded = decode("video", clip("mp4", "libx264", ramp()), sample_fps=25.0)
    assert decoded.fps == 10.0
    assert len(decoded.array) == 20


@pytest.mark.parametrize("fps", [0.0, -1.0, float("nan")])
def test_a_sampling_rate_must_be_positive(fps: float) -> None:
    with pytest.raises(ValueError, match="sample_fps"):
        decode("video", clip("mp4", "libx264", ramp()), sample_fps=fps)


def test_a_phone_held_upright_is_turned() -> None:
    def matrix(a: int, b: int, c: int, d: int) -> bytes:
        return struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)

    plain = clip("mp4", "libx264", ramp())
    track = plain.index(b"tkhd")
    at = plain.index(matrix(1, 0, 0, 1), track)
    turned = decode("video", plain[:at] + matrix(0, 1, -1, 0) + plain[at + 36 :])
    assert turned.array.shape == (20, 64, 48, 3)
    # A quarter turn clockwise: the bright left half comes to the top.
    assert turned.array[:, :28].mean() > turned.array[:, 36:].mean() + 20
    assert turned.notes == ("rotated by -90 degrees, as its header asks",)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (InputLimits(max_video_s=1.5), "is 2.0 s long, over the limit of 1.5 s"),
        (InputLimits(max_video_frames=10), "has 20 frames, over the limit of 10"),
        (InputLimits(max_frame_pixels=3000), "has frames of 64 x 48 pixels, over the limit of 3000"),
        (InputLimits(max_video_pixels=10 * 64 * 48), "pixels in all its frames, over the limit"),
        (InputLimits(max_video_bytes=100), "is larger than the limit of 100 bytes"),
    ],
)
def test_limits_are_read_from_the_header(limits: InputLimits, reason: str) -> None:
    with pytest.raises(InputError) as failure:
        decode("video", clip("mp4", "libx264", ramp()), limits=limits, label="messages[1].content[0]")
    assert reason in str(failure.value)
    assert failure.value.param == "messages[1].content[0]"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (InputLimits(max_video_frames=19), "has more than 19 frames"),
        (InputLimits(max_video_pixels=19 * 64 * 48), "in all its frames"),
    ],
)
def test_limits_hold_while_decoding(limits: InputLimits, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        decode("video", clip("mp4", "libx264", ramp()), limits=limits)


def test_sampling_brings_a_long_video_under_the_limit() -> None:
    limits = InputLimits(max_video_frames=5)
    assert len(decode("video", clip("mp4", "libx264", ramp()), limits=limits, sample_fps=2).array) == 4


@pytest.mark.parametrize(
    ("container", "codec", "options"),
    [
        ("mp4", "libx264", {}),
        ("mp4", "libx264", {"movflags": "frag_every_frame+empty_moov"}),
        ("webm", "libvpx-vp9", {}),
        ("avi", "mpeg4", {}),
        ("gif", "gif", {}),
    ],
)
@pytest.mark.parametrize("part", [0.3, 0.6])
def test_a_video_that_was_cut_is_refused(container: str, codec: str, options: dict[str, str], part: float) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (20, 48, 64, 3), dtype=np.uint8)
    pixel_format = "rgb8" if codec == "gif" else "yuv420p"
    whole = clip(container, codec, noise, options=options, pixel_format=pixel_format)
    with pytest.raises(InputError, match="cut short"):
        decode("video", whole[: int(len(whole) * part)])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty (0 bytes)"),
        (b"not a film", "holds plain text, not video"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n", "holds a playlist, not video"),
        (b"ffconcat version 1.0\nfile x.mp4\n", "holds a playlist, not video"),
        (picture(Image.new("RGB", (4, 4))), "holds PNG, not video"),
        (b"\0\0\0\x18ftypisom" + bytes(200), "cannot be decoded as MP4"),
        (b"\x1a\x45\xdf\xa3" + bytes(200), "cannot be decoded as Matroska/WebM"),
        (b"RIFF\xc0\0\0\0AVI LIST" + bytes(200), "cannot be decoded as AVI"),
    ],
)
def test_what_is_not_a_video(data: bytes, reason: str) -> None:
    with pytest.raises(InputError) as failure:
        decode("video", data, label="messages[0].content[0]")
    assert reason in str(failure.value)


def test_a_recording_has_no_pictures() -> None:
    with pytest.raises(InputError, match="is MP4 without pictures"):
        decode("video", clip("ipod", None, audio_codec="aac", audio=tone(1, 24_000), rate=24_000))


def test_pyav_missing_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    movie = clip("mp4", "libx264", ramp(2))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InputError, match="needs the package PyAV to be decoded: pip install av"):
        decode("video", movie)
