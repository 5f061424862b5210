"""Turns a video into upright 8-bit RGB frames with PyAV. The sound track is named, not decoded."""

from typing import Any

import numpy as np

from omni_cli.inputs.container import decode_stream, duration_s, open_container, pictures
from omni_cli.inputs.limits import InputLimits
from omni_cli.inputs.media import Decoded
from omni_cli.inputs.sniff import Sniffed
from omni_cli.inputs.source import Source


class _FrameStore:
    """Kept frames in one growing block of memory: arrays stacked at the end would need it twice."""

    def __init__(self, source: Source, limits: InputLimits) -> None:
        self._source = source
        self._limits = limits
        self._bytes = bytearray()
        self._shape: tuple[int, ...] = ()
        self.count = 0

    def add(self, pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        if not self.count:
            self._shape = pixels.shape
        elif pixels.shape != self._shape:
            raise self._source.refuse("changes its frame size half-way")
        self.count += 1
        if self.count > self._limits.max_video_frames:
            raise self._source.refuse(f"has more than {self._limits.max_video_frames} frames: {_REMEDY}")
        if self.count * pixels.shape[0] * pixels.shape[1] > self._limits.max_video_pixels:
            raise self._source.refuse(
                f"has more than {self._limits.max_video_pixels} pixels in all its frames: {_REMEDY}"
            )
        self._bytes += pixels.tobytes()

    def stacked(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.frombuffer(self._bytes, dtype=np.uint8).reshape(self.count, *self._shape)


_REMEDY = "shorten it, scale it down, or sample fewer frames a second"


def decode_frames(source: Source, sniffed: Sniffed, limits: InputLimits, sample_fps: float | None) -> Decoded:
    """Decodes the first moving stream. Raises InputError.

    With `sample_fps`, keeps the first frame at or after each multiple of 1 / sample_fps seconds.
    """
    with open_container(source, sniffed) as container:
        streams = pictures(container)
        if not streams:
            raise source.refuse(f"is {sniffed.title} without pictures")
        stream = streams[0]
        source_fps = float(stream.average_rate or stream.guessed_rate or 0)
        _check_header(container, stream, source_fps, source, limits, sample_fps)
        stream.codec_context.options = {"max_pixels": str(limits.max_frame_pixels)}
        step_s = None if sample_fps is None or sample_fps >= source_fps else 1.0 / sample_fps
        store, decoded, rotation = _decode(container, stream, source, sniffed, limits, source_fps, step_s)
        notes = _notes(container, decoded, store.count, rotation)
        return source.decoded(store.stacked(), notes, fps=source_fps if step_s is None else 1.0 / step_s)


def _check_header(
    container: Any,
    stream: Any,
    source_fps: float,
    source: Source,
    limits: InputLimits,
    sample_fps: float | None,
) -> None:
    if source_fps <= 0:
        raise source.refuse("declares no frame rate")
    pixels = stream.codec_context.width * stream.codec_context.height
    if pixels > limits.max_frame_pixels:
        size = f"{stream.codec_context.width} x {stream.codec_context.height}"
        raise source.refuse(f"has frames of {size} pixels, over the limit of {limits.max_frame_pixels}")
    seconds = duration_s(container) or 0.0
    if seconds > limits.max_video_s:
        raise source.refuse(f"is {seconds:.1f} s long, over the limit of {limits.max_video_s:g} s: cut it")
    kept = seconds * min(source_fps, sample_fps or source_fps)
    # The header rounds: what is over by a frame or two is left to the count while decoding.
    if kept > limits.max_video_frames + 2:
        raise source.refuse(f"has {kept:.0f} frames, over the limit of {limits.max_video_frames}: {_REMEDY}")
    if kept * pixels > limits.max_video_pixels + 2 * pixels:
        raise source.refuse(
            f"has {kept * pixels:.0f} pixels in all its frames, over the limit of {limits.max_video_pixels}: {_REMEDY}"
        )


def _decode(
    container: Any,
    stream: Any,
    source: Source,
    sniffed: Sniffed,
    limits: InputLimits,
    source_fps: float,
    step_s: float | None,
) -> tuple[_FrameStore, int, int]:
    """The kept frames, the number decoded, and the rotation applied in degrees."""
    store = _FrameStore(source, limits)
    decoded = rotation = 0
    start_s: float | None = None
    for frame in decode_stream(container, stream, source, sniffed):
        time_s = decoded / source_fps if frame.time is None else float(frame.time)
        start_s = time_s if start_s is None else start_s
        decoded += 1
        if time_s - start_s > limits.max_video_s:
            raise source.refuse(f"is longer than the limit of {limits.max_video_s:g} s: cut it")
        # A thousandth of a frame of grace: time stamps are rounded to the container's clock.
        if step_s is not None and time_s - start_s < store.count * step_s - 0.001 / source_fps:
            continue
        rotation = int(frame.rotation or 0)
        store.add(np.rot90(frame.to_ndarray(format="rgb24"), k=rotation // 90))
    if not store.count:
        raise source.refuse("holds no frames")
    return store, decoded, rotation


def _notes(container: Any, decoded: int, kept: int, rotation: int) -> list[str]:
    notes = []
    if rotation // 90:
        notes.append(f"rotated by {rotation} degrees, as its header asks")
    if kept < decoded:
        notes.append(f"{kept} of {decoded} frames kept")
    if container.streams.audio:
        notes.append("its sound track is not used")
    return notes
