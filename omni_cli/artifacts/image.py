"""Encodes pixels as an image file in memory, with what a reader wants to know about them (prompt, seed, ...)."""

import io
import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from omni_cli.artifacts.encoded import Encoded
from omni_cli.errors import ArtifactError

ImageFormat = Literal["png", "webp", "jpeg"]
_DESCRIPTION_TAG = 0x010E
_JPEG_CHARACTERS = 65_000  # of ASCII; a segment of the file has 65,533 bytes, a few of which are its own
_MEDIA_TYPES: dict[ImageFormat, str] = {"png": "image/png", "webp": "image/webp", "jpeg": "image/jpeg"}
_EXTENSIONS: dict[ImageFormat, str] = {"png": "png", "webp": "webp", "jpeg": "jpg"}


def encode(
    pixels: NDArray[Any],
    image_format: ImageFormat = "png",
    *,
    metadata: Mapping[str, str] | None = None,
    quality: int = 95,
) -> Encoded:
    """Encodes uint8 (H, W), (H, W, 3) or (H, W, 4); JPEG takes no alpha.

    PNG is lossless and holds `metadata` as text entries (iTXt); WebP and JPEG hold it as JSON in the EXIF image
    description and use `quality` (1 to 100). A JPEG has room for 64 KiB: of longer metadata, the longest entries say
    only how long they were. Raises ArtifactError.
    """
    if image_format not in _MEDIA_TYPES:
        raise ArtifactError(f"image format {image_format!r} is not known; choose {', '.join(_MEDIA_TYPES)}")
    _check(pixels, image_format)
    known = _cut_for_jpeg(metadata or {}) if image_format == "jpeg" else metadata or {}
    options = _png_options(known) if image_format == "png" else _exif_options(known, quality)
    file = io.BytesIO()
    try:
        Image.fromarray(np.ascontiguousarray(pixels)).save(file, image_format.upper(), **options)
    except (OSError, ValueError) as error:
        size = f"{pixels.shape[1]} x {pixels.shape[0]}"
        raise ArtifactError(f"{size} pixels cannot be encoded as {image_format}: {error}") from error
    return Encoded(
        data=file.getvalue(),
        extension=_EXTENSIONS[image_format],
        media_type=_MEDIA_TYPES[image_format],
        width=pixels.shape[1],
        height=pixels.shape[0],
    )


def _check(pixels: NDArray[Any], image_format: ImageFormat) -> None:
    shaped = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
    if pixels.dtype != np.uint8 or not shaped or 0 in pixels.shape:
        raise ArtifactError(
            f"pixels of {pixels.dtype} {pixels.shape} are no image; uint8 (H, W), (H, W, 3) or (H, W, 4) is needed"
        )
    if image_format == "jpeg" and pixels.ndim == 3 and pixels.shape[2] == 4:
        raise ArtifactError("JPEG cannot hold transparency; choose png or webp")


def _png_options(metadata: Mapping[str, str]) -> dict[str, Any]:
    info = PngImagePlugin.PngInfo()
    for key, value in metadata.items():
        # PNG specification, 11.3.4.2: keywords are 1 to 79 printable Latin-1 characters.
        if not (1 <= len(key) <= 79 and key.isascii() and key.isprintable()):
            raise ArtifactError(f"PNG metadata key {key!r} is not 1 to 79 printable ASCII characters")
        info.add_itxt(key, value)
    return {"pnginfo": info}


def _cut_for_jpeg(metadata: Mapping[str, str]) -> dict[str, str]:
    kept = dict(metadata)
    for name in sorted(kept, key=lambda name: len(json.dumps(kept[name])), reverse=True):
        if len(json.dumps(kept)) <= _JPEG_CHARACTERS:
            break
        kept[name] = f"({len(kept[name])} characters, more than a JPEG holds)"
    return kept


def _exif_options(metadata: Mapping[str, str], quality: int) -> dict[str, Any]:
    if not metadata:
        return {"quality": quality}
    exif = Image.Exif()
    exif[_DESCRIPTION_TAG] = json.dumps(dict(metadata))
    return {"quality": quality, "exif": exif}
