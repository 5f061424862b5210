"""Media inside a request: data URLs (RFC 2397) and plain base64, in every dialect that clients write.

Tolerant of alphabet, padding, line breaks, case and parameters; strict about every other character. The type in a URL
is not looked at. Opens no file and fetches nothing.
"""

import base64
import binascii
import re
from urllib.parse import unquote

from omni_cli.errors import InputError

_SCHEME = re.compile("data:", re.IGNORECASE)
_URL = re.compile(r"data:[^,;]*(?P<parameters>(?:;[^,;]*)*),(?P<data>.*)", re.DOTALL | re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/]+")


def is_data_url(value: str) -> bool:
    return _SCHEME.match(value) is not None


def data_of(url: str, *, label: str) -> bytes:
    """What a data URL holds. Raises InputError, starting with `label`."""
    found = _URL.fullmatch(url)
    if found is None or "base64" not in [p.strip().lower() for p in found["parameters"].split(";")]:
        raise InputError(f"{label}: a data URL has to be data:TYPE;base64,DATA", param=label)
    return decode_base64(unquote(found["data"]) if "%" in found["data"] else found["data"], label=label)


def decode_base64(text: str, *, label: str) -> bytes:
    """Either alphabet, with or without padding and line breaks, at least a byte. Raises InputError."""
    compact = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    if not _BASE64.fullmatch(compact):
        raise InputError(f"{label}: does not hold base64", param=label)
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except binascii.Error as error:
        raise InputError(f"{label}: does not hold base64: {error}", param=label) from error
