"""Media inside a request: data URLs (RFC 2397) in base64. Opens no file and fetches nothing."""

import base64
import binascii
import re

from omni_cli.errors import InputError

_SCHEME = re.compile("data:", re.IGNORECASE)
_HEAD = re.compile("data:[^,]*;base64,", re.IGNORECASE)


def is_data_url(value: str) -> bool:
    return _SCHEME.match(value) is not None


def data_of(url: str, *, label: str) -> bytes:
    """What a data URL holds; the type in it is not looked at. Raises InputError, starting with `label`."""
    head = _HEAD.match(url)
    if head is None:
        raise InputError(f"{label}: a data URL has to be data:TYPE;base64,DATA", param=label)
    try:
        return base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{label}: the data URL does not hold base64: {error}", param=label) from error
