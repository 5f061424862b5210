"""Media of a request: data URLs in every dialect, raw base64, and URLs as far as the server allows them.

Media is media or an error: it is never taken for text and never dropped. The content decides what it is.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from omni_cli.errors import InputError
from omni_cli.inputs.sniff import sniff
from omni_cli.server.fetching import Fetcher

# Values of `input_audio.format`, and what the data may then be, in the words of `sniff`.
_FORMATS = {
    "wav": ("WAV",), "mp3": ("MP3",), "flac": ("FLAC",), "ogg": ("Ogg",), "opus": ("Ogg",), "aac": ("AAC", "MP4"),
    "m4a": ("MP4",), "mp4": ("MP4",), "webm": ("Matroska/WebM",), "aiff": ("AIFF",),
}  # fmt: skip

_DATA = re.compile(r"data:(?P<type>[^,;]*)(?P<parameters>(?:;[^,;]*)*),(?P<data>.*)", re.DOTALL | re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSource:
    """Where media may come from: `root` is the folder for `file:` URLs, None for nowhere."""

    fetcher: Fetcher
    root: Path | None

    async def read(self, url: str, label: str) -> bytes | Path:
        """The bytes behind a URL, or the path of a permitted file. Raises InputError."""
        if url[:5].lower() == "data:":
            return decode_data_url(url, label)
        try:
            scheme = urlsplit(url).scheme.lower()
        except ValueError as error:
            raise InputError(f"{label}: is no URL ({error})", param=label) from error
        if scheme in ("http", "https"):
            return await self.fetcher.fetch(url, label)
        if scheme == "file":
            return self._file(url, label)
        what = f"{scheme}: URLs are not" if scheme else "it is not a URL; only data, http(s) and file URLs are"
        raise InputError(f"{label}: {what} accepted", param=label)

    def _file(self, url: str, label: str) -> Path:
        if self.root is None:
            raise InputError(f"{label}: file: URLs are switched off (serve.media_root)", param=label)
        parts = urlsplit(url)
        path = Path(unquote(parts.path)).resolve()
        if parts.netloc not in ("", "localhost") or not path.is_relative_to(self.root.resolve()):
            raise InputError(f"{label}: only files below the server's media root may be read", param=label)
        return path


def decode_data_url(url: str, label: str) -> bytes:
    """RFC 2397, base64 only; tolerant of case, parameters and an empty media type. Raises InputError."""
    found = _DATA.fullmatch(url)
    if found is None:
        raise InputError(f"{label}: is no data URL (data:<type>;base64,<data>)", param=label)
    if "base64" not in [p.strip().lower() for p in found["parameters"].split(";")]:
        raise InputError(f"{label}: a data URL of media must be base64 (data:<type>;base64,<data>)", param=label)
    return decode_base64(unquote(found["data"]) if "%" in found["data"] else found["data"], label)


def decode_base64(text: str, label: str) -> bytes:
    """Standard or URL-safe alphabet, with or without padding, with or without line breaks. Raises InputError."""
    compact = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    if not compact or not _BASE64.fullmatch(compact):
        raise InputError(f"{label}: is not base64", param=label)
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except binascii.Error as error:
        raise InputError(f"{label}: is not base64 ({error})", param=label) from error


def audio_data(data: str, form: str | None, label: str) -> bytes:
    """What `input_audio.data` holds: base64, or a data URL. Raises InputError, also if it is not what `form` says."""
    found = decode_data_url(data, label) if data[:5].lower() == "data:" else decode_base64(data, label)
    really = sniff(found)
    if form is not None and really is not None and really.kinds and really.title not in _FORMATS.get(form.lower(), ()):
        known = f"the data are {really.title}" if form.lower() in _FORMATS else f"only {', '.join(_FORMATS)} are known"
        raise InputError(f"{label}: format says {form}; {known}", param=f"{label}.input_audio.format")
    return found
