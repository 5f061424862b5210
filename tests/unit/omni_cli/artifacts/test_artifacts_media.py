import io
import json
import sys
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from omni_cli.artifacts import image, video
from omni_cli.errors import ArtifactError

NOISE = np.random.default_rng(0).integers(0, 255, (6, 10, 3), dtype=np.uint8)


@pytest.mark.parametrize("pixels", [NOISE, NOISE[:, :, 0], np.dstack([NOISE, NOISE[:, :, :1]]), NOISE[:, ::-1]])
def test_png_is_lossless_and_holds_its_metadata(pixels: np.ndarray) -> None:
    metadata = {"prompt": "猫 on a mat\nwith ${x}", "seed": "7"}
    encoded = image.encode(pixels, metadata=metadata)
    with Image.open(io.BytesIO(encoded.data)) as read:
        np.testing.assert_array_equal(np.asarray(read), pixels)
        assert {key: str(value) for key, value in read.text.items()} == metadata  # type: ignore[attr-defined]
    assert (encoded.width, encoded.height, encoded.extension) == (10, 6, "png")


@pytest.mark.parametrize(("image_format", "extension"), [("webp", "webp"), ("jpeg", "jpg")])
def test_webp_and_jpeg_hold_their_metadata_in_exif(image_format: Any, extension: str) -> None:
    grey = np.full((8, 8, 3), 90, np.uint8)
    encoded = image.encode(grey, image_format, metadata={"prompt": "猫"})
    with Image.open(io.BytesIO(encoded.data)) as read:
        assert read.format == image_format.upper()
        assert np.abs(np.asarray(read.convert("RGB")).astype(int) - 90).max() <= 2
        assert json.loads(read.getexif()[0x010E]) == {"prompt": "猫"}
    assert encoded.extension == extension
    assert not Image.open(io.BytesIO(image.encode(grey, image_format).data)).getexif()


@pytest.mark.parametrize(
    ("pixels", "image_format", "reason"),
    [
        (NOISE.astype(np.float32), "png", "pixels of float32"),
        (NOISE[None], "png", "are no image"),
        (NOISE[:0], "png", "are no image"),
        (np.zeros((4, 4, 4), np.uint8), "jpeg", "cannot hold transparency"),
        (NOISE, "bmp", "is not known; choose png, webp, jpeg"),
        (np.zeros((1, 20_000), np.uint8), "webp", "20000 x 1 pixels cannot be encoded as webp"),
    ],
)
def test_what_is_no_image(pixels: np.ndarray, image_format: Any, reason: str) -> None:
    with pytest.raises(ArtifactError, match=reason):
        image.encode(pixels, image_format)


@pytest.mark.parametrize("key", ["", "x" * 80, "schlüssel", "a\nb"])
def test_a_png_key_is_what_the_format_allows(key: str) -> None:
    with pytest.raises(ArtifactError, match="PNG metadata key"):
        image.encode(NOISE, metadata={key: "x"})


def ramp(count: int, height: int = 32, width: int = 48) -> np.ndarray:
    return np.repeat(np.arange(count, dtype=np.uint8) * 10, height * width * 3).reshape(count, height, width, 3)


@pytest.mark.parametrize("fps", [8, 24.0, 23.976, 29.97])
def test_a_video_holds_its_frames_its_rate_and_how_it_was_made(fps: float) -> None:
    encoded = video.encode(ramp(12), fps=fps, metadata={"prompt": "猫", "seed": "7"})
    with av.open(io.BytesIO(encoded.data)) as read:
        assert json.loads(read.metadata["comment"]) == {"prompt": "猫", "seed": "7"}
        stream = read.streams.video[0]
        assert float(stream.average_rate) == pytest.approx(fps, rel=1e-4)
        levels = [frame.to_ndarray(format="rgb24").mean() for frame in read.decode(stream)]
    np.testing.assert_allclose(levels, np.arange(12) * 10, atol=4)
    assert (encoded.frames, encoded.width, encoded.height, encoded.warnings) == (12, 48, 32, ())
    assert encoded.duration_s == pytest.approx(12 / fps)


def test_odd_sides_are_made_even_with_a_warning() -> None:
    encoded = video.encode(ramp(2, 31, 47), fps=8)
    assert encoded.warnings == ("47 x 31 pixels made even: 48 x 32",)
    assert (encoded.width, encoded.height) == (48, 32)


@pytest.mark.parametrize(
    ("frames", "fps", "reason"),
    [
        (ramp(2).astype(np.float32), 8, "are no video"),
        (ramp(2)[:0], 8, "are no video"),
        (ramp(2), 0, "no frame rate"),
        (ramp(2), float("nan"), "no frame rate"),
    ],
)
def test_what_is_no_video(frames: np.ndarray, fps: float, reason: str) -> None:
    with pytest.raises(ArtifactError, match=reason):
        video.encode(frames, fps=fps)


def test_pyav_missing_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ArtifactError, match="pip install av"):
        video.encode(ramp(2), fps=8)


def test_a_jpeg_keeps_what_it_has_room_for() -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)
    for metadata in ({"prompt": "猫" * 12_000, "seed": "5"}, {"prompt": "a" * 40_000, "negative_prompt": "b" * 39_000}):
        read = Image.open(io.BytesIO(image.encode(pixels, "jpeg", metadata=metadata).data))
        said = json.loads(read.getexif()[0x010E])
        assert said.pop("prompt") == f"({len(metadata['prompt'])} characters, more than a JPEG holds)"
        assert said == {name: value for name, value in metadata.items() if name != "prompt"}
