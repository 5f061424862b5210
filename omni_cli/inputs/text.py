"""Prompt text: UTF-8 whatever the locale, and never nothing at all.

Text is data: it is not stripped, expanded or interpreted here.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from omni_cli.errors import InputError
from omni_cli.inputs.limits import InputLimits
from omni_cli.inputs.source import Media, open_source


def decode_text(
    media: Media, *, label: str | None = None, limits: InputLimits | None = None, errors: str = "strict"
) -> str:
    """The text of a file or of bytes; a leading byte order mark is dropped. `errors` is that of `bytes.decode`.

    Raises InputError.
    """
    limits = limits or InputLimits()
    source = open_source(media, noun="text", label=label, max_bytes=limits.max_text_bytes)
    try:
        return source.data.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        raise source.refuse(f"is not UTF-8 text (byte {error.start}): save it as UTF-8") from error


def read_text(path: str, noun: str, *, limits: InputLimits | None = None, errors: str = "strict") -> str:
    """As `decode_text`: of the file at `path`, which messages call by `noun` and its absolute path; `-` is stdin."""
    if path == "-":
        return decode_text(sys.stdin.buffer.read(), label="stdin", limits=limits, errors=errors)
    return decode_text(Path(path), label=f"{noun} {Path(path).absolute()}", limits=limits, errors=errors)


def require_content(texts: Iterable[str | None], *, media_count: int, label: str) -> None:
    """Refuses a request that says nothing: no text beyond white space and no media.

    `label` is the parameter that should have held it ("prompt", "messages"). Raises InputError.
    """
    blank = True
    for text in texts:
        if text is None:
            continue
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError(f"{label}: holds a lone surrogate, which is no character", param=label)
        blank = blank and not text.strip()
    if blank and not media_count:
        raise InputError(f"{label}: is empty or blank: give text, or media that the model takes", param=label)


def parse_json(text: str) -> object:
    """The value of a JSON text. Raises InputError; also for a key that stands twice, of which json would silently take
    the last."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            raise InputError(f"key {next(k for k in keys if keys.count(k) > 1)!r} stands there twice")
        return found

    try:
        value: object = json.loads(text, object_pairs_hook=once)
    except ValueError as error:
        raise InputError(f"is not JSON: {error}") from error
    except RecursionError:
        raise InputError("is nested too deep") from None
    return value
