"""Turns an encoded image into upright 8-bit RGB with Pillow.

Transparency is composited over white, as on paper and in a browser. ICC profiles are not applied. The size is
checked from the header, before a pixel is decoded.
"""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from omni_cli.errors import InputError
from omni_cli.inputs.limits import InputLimits
from omni_cli.inputs.media import Decoded
from omni_cli.inputs.sniff import Sniffed
from omni_cli.inputs.source import Source

_ORIENTATION_TAG = 0x0112
# EXIF 2.32, 4.6.4 A: what undoes each stored orientation.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_pixels(source: Source, sniffed: Sniffed, limits: InputLimits) -> Decoded:
    """Decodes the first frame of an image that `sniffed` recognised. Raises InputError."""
    try:
        with Image.open(io.BytesIO(source.data), formats=(sniffed.decoder,)) as image:
            width, height = image.size
            if width * height > limits.max_image_pixels:
                most = limits.max_image_pixels
                raise source.refuse(f"has {width} x {height} pixels, over the limit of {most}: scale it down")
            image.load()
            notes = ["the first of several frames is used"] if getattr(image, "is_animated", False) else []
            orientation = _orientation(image, notes)
            pixels = _to_rgb(image, source, notes)
            if orientation in _UPRIGHT:
                pixels = np.array(Image.fromarray(pixels).transpose(_UPRIGHT[orientation]))
                notes.append(f"EXIF orientation {orientation} applied")
    except InputError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise source.refuse(f"has too many pixels: {error}") from error
    except Exception as error:  # a decoder fed with hostile bytes raises whatever it likes
        raise source.refuse(f"cannot be decoded as {sniffed.title}: {_reason(error)}") from error
    return source.decoded(pixels, notes)


def _orientation(image: Image.Image, notes: list[str]) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # the tag is only advice; the pixels are good without it
        notes.append("its EXIF data is damaged and was ignored")
        return 1


def _to_rgb(image: Image.Image, source: Source, notes: list[str]) -> NDArray[np.uint8]:
    """Any mode to uint8 (height, width, 3); what is lost on the way is noted."""
    if image.mode.startswith(("I", "F")):
        return _from_wide_grey(image, source, notes)
    if image.has_transparency_data:
        notes.append("transparency composited over white")
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return np.array(image.convert("RGB"))


def _from_wide_grey(image: Image.Image, source: Source, notes: list[str]) -> NDArray[np.uint8]:
    """16 and 32-bit grey, which Pillow would clip at 255. 16 bits have a fixed range, 32 bits their own."""
    values: NDArray[Any] = np.asarray(image)
    if image.mode.startswith("I;16"):
        low, high = 0.0, 65535.0
        notes.append("16-bit grey scaled to 8 bits")
    else:
        low, high = float(values.min()), float(values.max())
        if not np.isfinite((low, high)).all():
            raise source.refuse("holds pixels that are not finite numbers")
        notes.append(f"grey values scaled from [{low:g}, {high:g}] to 8 bits")
    scale = 255.0 / (high - low) if high > low else 0.0
    grey = np.rint((values.astype(np.float32) - low) * scale).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _reason(error: Exception) -> str:
    # Pillow's "cannot identify image file <_io.BytesIO object at 0x...>" says nothing to a reader.
    if isinstance(error, UnidentifiedImageError):
        return "its header is damaged"
    return str(error) or type(error).__name__
