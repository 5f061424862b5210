"""Media of a request: data URLs, raw base64, and URLs as far as the server allows them.

Media is media or an error: it is never taken for text and never dropped. The content decides what it is.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from omni_cli.errors import InputError
from omni_cli.inputs.data_url import data_of, decode_base64, is_data_url
from omni_cli.inputs.sniff import sniff
from omni_cli.server.fetching import Fetcher

# Values of `input_audio.format`, and what the data may then be, in the words of `sniff`.
_FORMATS = {
    "wav": ("WAV",), "mp3": ("MP3",), "flac": ("FLAC",), "ogg": ("Ogg",), "opus": ("Ogg",), "aac": ("AAC", "MP4"),
    "m4a": ("MP4",), "mp4": ("MP4",), "webm": ("Matroska/WebM",), "aiff": ("AIFF",),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSource:
    """Where media may come from: `root` is the folder for `file:` URLs, None for nowhere."""

    fetcher: Fetcher
    root: Path | None

    async def read(self, url: str, label: str) -> bytes | Path:
        """The bytes behind a URL, or the path of a permitted file. Raises InputError."""
        if is_data_url(url):
            return data_of(url, label=label)
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
        try:
            path = Path(unquote(parts.path)).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a NUL, a lone surrogate, links in a circle
            raise InputError(f"{label}: is no path of a file ({type(error).__name__})", param=label) from error
        if parts.netloc not in ("", "localhost") or not path.is_relative_to(self.root.resolve()):
            raise InputError(f"{label}: only files below the server's media root may be read", param=label)
        if not os.path.isfile(path):
            raise InputError(f"{label}: there is no such file", param=label)
        return path


def audio_data(data: str, form: str | None, label: str) -> bytes:
    """What `input_audio.data` holds: base64, or a data URL. Raises InputError, also if it is not what `form` says."""
    found = data_of(data, label=label) if is_data_url(data) else decode_base64(data, label=label)
    really = sniff(found)
    if form is not None and really is not None and really.kinds and really.title not in _FORMATS.get(form.lower(), ()):
        known = f"the data are {really.title}" if form.lower() in _FORMATS else f"only {', '.join(_FORMATS)} are known"
        raise InputError(f"{label}: format says {form}; {known}", param=f"{label}.input_audio.format")
    return found
