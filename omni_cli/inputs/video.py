"""Turns a video into upright 8-bit RGB frames with PyAV. The sound track is named, not decoded."""

from typing import Any

import numpy as np

from omni_cli.inputs.container import decode_stream, duration_s, open_container, pictures
from omni_cli.inputs.limits import InputLimits
from omni_cli.inputs.media import Decoded
from omni_cli.inputs.sniff import Sniffed
from omni_cli.inputs.source import Source

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
        fps = float(stream.average_rate or stream.guessed_rate or 0)
        _check_header(container, stream, fps, min(fps, sample_fps or fps), source, limits)
        stream.codec_context.options = {"max_pixels": str(limits.max_frame_pixels)}
        step_s = None if sample_fps is None or sample_fps >= fps else 1.0 / sample_fps
        store = _FrameStore(source, limits)
        for frame in decode_stream(container, stream, source, sniffed):
            store.take(frame, fps, step_s)
        if not store.count:
            raise source.refuse("holds no frames")
        notes = _notes(container, store)
        return source.decoded(store.stacked(), notes, fps=fps if step_s is None else 1.0 / step_s)


def _check_header(
    container: Any, stream: Any, fps: float, kept_fps: float, source: Source, limits: InputLimits
) -> None:
    if fps <= 0:
        raise source.refuse("declares no frame rate")
    pixels = stream.codec_context.width * stream.codec_context.height
    if pixels > limits.max_frame_pixels:
        size = f"{stream.codec_context.width} x {stream.codec_context.height}"
        raise source.refuse(f"has frames of {size} pixels, over the limit of {limits.max_frame_pixels}")
    seconds = duration_s(container) or 0.0
    if seconds > limits.max_video_s:
        raise source.refuse(f"is {seconds:.1f} s long, over the limit of {limits.max_video_s:g} s: cut it")
    kept = seconds * kept_fps
    # The header rounds: what is over by a frame or two is left to the count while decoding.
    if kept > limits.max_video_frames + 2:
        raise source.refuse(f"has {kept:.0f} frames, over the limit of {limits.max_video_frames}: {_REMEDY}")
    if kept * pixels > limits.max_video_pixels + 2 * pixels:
        raise source.refuse(
            f"has {kept * pixels:.0f} pixels in all its frames, over the limit of {limits.max_video_pixels}: {_REMEDY}"
        )


class _FrameStore:
    """Kept frames in one growing block of memory: arrays stacked at the end would need it twice. `decoded` counts those
    that came; `rotation` in degrees was applied."""

    def __init__(self, source: Source, limits: InputLimits) -> None:
        self._source = source
        self._limits = limits
        self._bytes = bytearray()
        self._shape: tuple[int, ...] = ()
        self._start_s: float | None = None
        self.count = self.decoded = self.rotation = 0

    def take(self, frame: Any, fps: float, step_s: float | None) -> None:
        """Keeps the next frame that was decoded, if it is due: one each `step_s`, or all."""
        time_s = self.decoded / fps if frame.time is None else float(frame.time)
        self._start_s = time_s if self._start_s is None else self._start_s
        time_s -= self._start_s
        self.decoded += 1
        if time_s > self._limits.max_video_s:
            raise self._source.refuse(f"is longer than the limit of {self._limits.max_video_s:g} s: cut it")
        # A thousandth of a frame of grace: time stamps are rounded to the container's clock.
        if step_s is None or time_s >= self.count * step_s - 0.001 / fps:
            self.rotation = int(frame.rotation or 0)
            self._add(np.rot90(frame.to_ndarray(format="rgb24"), k=self.rotation // 90))

    def _add(self, pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
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


def _notes(container: Any, store: _FrameStore) -> list[str]:
    notes = []
    if store.rotation // 90:
        notes.append(f"rotated by {store.rotation} degrees, as its header asks")
    if store.count < store.decoded:
        notes.append(f"{store.count} of {store.decoded} frames kept")
    if container.streams.audio:
        notes.append("its sound track is not used")
    return notes
