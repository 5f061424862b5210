"""A finished file in memory: the command line writes these bytes, the server sends the same ones."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Numbers are those of the file; None where a file of its kind has none."""

    data: bytes
    extension: str
    media_type: str
    duration_s: float | None = None
    rate_hz: int | None = None
    frames: int | None = None
    width: int | None = None
    height: int | None = None
    fps: float | None = None
    warnings: tuple[str, ...] = ()
