"""Opens media containers (MP4, WebM, AAC, ...) with PyAV, which is imported only here and only when needed.

Each is opened under the name that its signature gave, with no protocols: the demuxer never guesses and never
opens another file or address.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omni_cli.inputs.sniff import AAC, AVI, FLAC, GIF, MATROSKA, OGG, Sniffed
from omni_cli.inputs.source import Source
from omni_cli.inputs.track import AudioTrack

_MICROSECOND = 1e-6
_DEMUXERS = {FLAC.decoder: "flac", OGG.decoder: "ogg"}
# How far the last packet may end before the declared duration, in seconds: headers round.
_SLACK_S = 0.25


def load_pyav(source: Source) -> Any:
    """The `av` module; a refusal with the remedy where it is not installed."""
    try:
        import av
        import av.error
    except ImportError as error:
        raise source.refuse("needs the package PyAV to be decoded: pip install av") from error
    return av


@contextmanager
def open_container(source: Source, sniffed: Sniffed) -> Iterator[Any]:
    """Opens the container for reading. Raises InputError, also for what PyAV raises inside the block."""
    av = load_pyav(source)
    _check_end(source, sniffed)
    demuxer = _DEMUXERS.get(sniffed.decoder, sniffed.decoder)
    options = {"format_whitelist": _whitelist(av, demuxer), "protocol_whitelist": ""}
    try:
        with av.open(io.BytesIO(source.data), format=demuxer, options=options) as container:
            yield container
    except (av.error.FFmpegError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise source.refuse(f"cannot be decoded as {sniffed.title}: it is damaged or cut short ({reason})") from error


def _check_end(source: Source, sniffed: Sniffed) -> None:
    """AVI and GIF say where they end, and ffmpeg does not look; the others fail while they are demuxed."""
    data = source.data
    riff_bytes = int.from_bytes(data[4:8], "little") if sniffed is AVI else 0
    open_length = riff_bytes == 0xFFFFFFFF
    if (riff_bytes + 8 > len(data) and not open_length) or (sniffed is GIF and not data.rstrip(b"\0").endswith(b";")):
        raise source.refuse(f"is cut short: the end of the {sniffed.title} is not there")


def _whitelist(av: Any, demuxer: str) -> str:
    # ffmpeg compares the whitelist with the demuxer's full name: "mov,mp4,m4a,3gp,3g2,mj2" for "mov".
    return str(av.format.ContainerFormat(demuxer, "r").name)


def decode_stream(container: Any, stream: Any, source: Source, sniffed: Sniffed) -> Iterator[Any]:
    """Decoded frames of one stream. All streams are demuxed, so that a container that was cut shows."""
    reached_s = 0.0
    for packet in container.demux():
        stamp = packet.dts if packet.pts is None else packet.pts
        if stamp is not None and packet.time_base is not None:
            end = stamp + (packet.duration or 0)
            reached_s = max(reached_s, float(end * packet.time_base))
        if packet.stream is stream or packet.stream.index == stream.index:
            yield from packet.decode()
    # Matroska declares a duration and ends silently where the file does.
    declared_s = duration_s(container) if sniffed is MATROSKA else None
    if declared_s is not None and reached_s < 0.98 * declared_s - _SLACK_S:
        raise source.refuse(f"is cut short: it declares {declared_s:.2f} s and ends at {reached_s:.2f} s")


def duration_s(container: Any) -> float | None:
    """Declared duration in seconds; an estimate for formats without one of their own (AAC, MPEG-TS)."""
    return None if container.duration is None else container.duration * _MICROSECOND


def pictures(container: Any) -> list[Any]:
    """Video streams that move: a cover picture attached to a recording is not one."""
    return [s for s in container.streams.video if "attached_pic" not in str(s.disposition).lower()]


def open_audio_track(container: Any, source: Source, sniffed: Sniffed) -> AudioTrack:
    """The first sound track of an open container. Raises InputError where there is none."""
    if not container.streams.audio:
        raise source.refuse(f"is {sniffed.title} without a sound track")
    stream = container.streams.audio[0]
    rate, channels = int(stream.rate or 0), int(stream.channels or 0)
    declared_s = None if sniffed is AAC else duration_s(container)
    notes = ["the pictures of this video are not used"] if pictures(container) else []
    if len(container.streams.audio) > 1:
        notes.append(f"the first of {len(container.streams.audio)} sound tracks is used")
    return AudioTrack(
        sample_rate_hz=rate,
        channels=channels,
        declared_frames=int((declared_s or 0) * rate),  # decode_stream watches for a cut itself
        blocks=_audio_blocks(container, stream, source, sniffed),
        notes=tuple(notes),
    )


def _audio_blocks(container: Any, stream: Any, source: Source, sniffed: Sniffed) -> Iterator[NDArray[np.float32]]:
    av = load_pyav(source)
    rate, channels = stream.rate, stream.channels
    to_float = av.AudioResampler(format="fltp")
    for frame in decode_stream(container, stream, source, sniffed):
        if frame.sample_rate != rate or len(frame.layout.channels) != channels:
            raise source.refuse("changes its sample rate or channel count half-way")
        frame.pts = None  # gaps in the time stamps are the container's affair, not the samples'
        for converted in to_float.resample(frame):
            yield np.ascontiguousarray(converted.to_ndarray().T, dtype=np.float32)
