import hashlib
import io
import resource
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from omni_cli.errors import InputError
from omni_cli.inputs.decode import decode
from omni_cli.inputs.limits import InputLimits
from tests.unit.omni_cli.inputs.media_samples import picture

RED, BLUE = (255, 0, 0), (0, 0, 255)


def two_halves(mode: str = "RGB") -> Image.Image:
    """4 wide, 2 high: red on the left, blue on the right."""
    image = Image.new("RGB", (4, 2), RED)
    image.paste(BLUE, (2, 0, 4, 2))
    return image.convert(mode)


@pytest.mark.parametrize("container", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "MPO"])
def test_formats(container: str) -> None:
    image = Image.new("RGB", (32, 16), RED)
    decoded = decode("image", picture(image, container), label="messages[0].content[1]")
    assert decoded.array.dtype == np.uint8
    assert decoded.array.shape == (16, 32, 3)
    assert np.abs(decoded.array.astype(int) - RED).max() <= 4


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1)])
def test_degenerate_sizes_are_the_models_business(size: tuple[int, int]) -> None:
    decoded = decode("image", picture(Image.new("RGB", size, BLUE)))
    assert decoded.array.shape == (size[1], size[0], 3)
    assert decoded.array[-1, -1].tolist() == list(BLUE)


@pytest.mark.parametrize(
    ("mode", "container"),
    [("CMYK", "TIFF"), ("P", "GIF"), ("P", "PNG"), ("RGBA", "PNG"), ("YCbCr", "TIFF"), ("LAB", "TIFF")],
)
def test_modes(mode: str, container: str) -> None:
    image = two_halves("RGB") if mode == "LAB" else two_halves(mode)
    decoded = decode("image", picture(image, container))
    assert np.abs(decoded.array[0, 0].astype(int) - RED).max() <= 8
    assert np.abs(decoded.array[1, 3].astype(int) - BLUE).max() <= 8


def test_cmyk_jpeg() -> None:
    decoded = decode("image", picture(Image.new("RGB", (16, 16), RED).convert("CMYK"), "JPEG"))
    assert np.abs(decoded.array.astype(int) - RED).max() <= 8


def test_black_and_white_and_grey() -> None:
    assert decode("image", picture(Image.new("1", (3, 3), 1))).array.min() == 255
    assert decode("image", picture(Image.new("L", (3, 3), 77))).array.tolist() == [[[77] * 3] * 3] * 3


def test_16_bit_grey_is_scaled_not_clipped() -> None:
    values = np.array([[0, 257, 32_896, 65_535]], np.uint16)
    decoded = decode("image", picture(Image.fromarray(values)))
    assert decoded.array[0, :, 0].tolist() == [0, 1, 128, 255]
    assert decoded.notes == ("16-bit grey scaled to 8 bits",)


def test_float_grey_is_scaled_by_its_own_range_and_must_be_finite() -> None:
    values = np.array([[-1.0, 0.0, 1.0]], np.float32)
    decoded = decode("image", picture(Image.fromarray(values), "TIFF"))
    assert decoded.array[0, :, 1].tolist() == [0, 128, 255]
    assert decoded.notes == ("grey values scaled from [-1, 1] to 8 bits",)
    values[0, 0] = np.nan
    with pytest.raises(InputError, match="not finite"):
        decode("image", picture(Image.fromarray(values), "TIFF"))


def test_transparency_goes_over_white() -> None:
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    decoded = decode("image", picture(image))
    assert decoded.array.tolist() == [[[255, 0, 0], [255, 255, 255]]]
    assert decoded.notes == ("transparency composited over white",)


def test_transparent_palette_entry_goes_over_white() -> None:
    image = two_halves("P")
    background = image.getpixel((0, 0))
    decoded = decode("image", picture(image, "GIF", transparency=background))
    assert decoded.array[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("container", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize(
    ("orientation", "stored"),
    [
        (2, Image.Transpose.FLIP_LEFT_RIGHT),
        (3, Image.Transpose.ROTATE_180),
        (4, Image.Transpose.FLIP_TOP_BOTTOM),
        (5, Image.Transpose.TRANSPOSE),
        (6, Image.Transpose.ROTATE_90),
        (7, Image.Transpose.TRANSVERSE),
        (8, Image.Transpose.ROTATE_270),
    ],
)
def test_exif_orientation_is_applied(container: str, orientation: int, stored: Image.Transpose) -> None:
    upright = Image.fromarray(np.random.default_rng(0).integers(0, 255, (3, 5, 3), dtype=np.uint8))
    upright = upright.resize((40, 24), Image.Resampling.NEAREST)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 100, "lossless": True} if container == "WEBP" else {}
    decoded = decode("image", picture(upright.transpose(stored), container, exif=exif, **options))
    assert decoded.array.shape == (24, 40, 3)
    assert np.abs(decoded.array.astype(int) - np.asarray(upright)).mean() < 12


def test_damaged_exif_is_noted() -> None:
    exif = Image.Exif()
    exif[0x010E] = "upside down"  # a description ...
    damaged = exif.tobytes().replace(b"\x01\x0e", b"\x01\x12")  # ... where the orientation is expected
    decoded = decode("image", picture(two_halves(), "JPEG", exif=damaged))
    assert decoded.array.shape == (2, 4, 3)
    assert decoded.notes == ("its EXIF data is damaged and was ignored",)


@pytest.mark.parametrize("container", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_of_several_frames(container: str) -> None:
    first, second = Image.new("RGB", (8, 8), RED), Image.new("RGB", (8, 8), BLUE)
    options = {"lossless": True} if container == "WEBP" else {}
    decoded = decode("image", picture(first, container, save_all=True, append_images=[second], **options))
    assert decoded.array[0, 0].tolist() == list(RED)
    assert "the first of several frames is used" in decoded.notes


def png_header(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(100_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(50_000, 50_000), (9_000, 9_000), (2**31 - 1, 1)])
def test_a_decompression_bomb_is_refused_from_its_header(tmp_path: Path, width: int, height: int) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(width, height))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="pixels") as failure:
        decode("image", path)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 20 * 1024
    assert str(path) in str(failure.value)


def test_the_limit_is_a_number_of_pixels() -> None:
    limits = InputLimits(max_image_pixels=12)
    assert decode("image", picture(Image.new("L", (4, 3))), limits=limits).array.shape == (3, 4, 3)
    with pytest.raises(InputError, match="has 13 x 1 pixels, over the limit of 12: scale it down"):
        decode("image", picture(Image.new("L", (13, 1))), limits=limits)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", "holds an SVG drawing"),
        (b"<?xml version='1.0'?>\n<!-- c -->\n<svg></svg>", "export it to PNG"),
        (b"<!DOCTYPE html><title>404</title>", "holds an HTML page, not an image"),
        (b"", "is empty (0 bytes)"),
        (b"hello", "holds plain text, not an image"),
        (b"%PDF-1.7\n%\xe2\xe3", "holds a PDF document"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "holds WAV, not an image"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "holds a HEIC photo"),
        (picture(two_halves())[:30], "cannot be decoded as PNG"),
        (b"\x89PNG\r\n\x1a\n", "cannot be decoded as PNG"),
        (picture(Image.effect_noise((64, 64), 80), "JPEG")[:900], "cannot be decoded as JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "holds plain text"),
    ],
)
def test_what_is_not_an_image(data: bytes, reason: str) -> None:
    with pytest.raises(InputError) as failure:
        decode("image", data, label="messages[0].content[2]")
    assert reason in str(failure.value)
    assert str(failure.value).startswith("messages[0].content[2]: ")
    assert failure.value.param == "messages[0].content[2]"
    assert "BytesIO" not in str(failure.value)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's remarks on damaged EXIF
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_damage_is_refused_or_decoded_never_an_exception_of_another_kind(data: st.DataObject) -> None:
    container = data.draw(st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM"]))
    noise = np.random.default_rng(0).integers(0, 255, (7, 9, 3), dtype=np.uint8)
    damaged = bytearray(picture(Image.fromarray(noise), container))
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), max_size=6)):
        damaged[place] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(1, len(damaged))) :]
    try:
        decoded = decode("image", bytes(damaged))
    except InputError:
        return
    assert decoded.array.ndim == 3
    assert decoded.array.dtype == np.uint8


def test_the_file_is_read_once_and_hashed(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"  # a PNG by content
    path.write_bytes(picture(two_halves()))
    decoded = decode("image", path)
    assert decoded.label == f"image file {path}"
    assert decoded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert np.array_equal(decoded.array, np.asarray(Image.open(io.BytesIO(path.read_bytes()))))
