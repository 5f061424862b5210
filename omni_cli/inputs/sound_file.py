"""Reads WAV, AIFF, FLAC, Ogg and MP3 with libsndfile. It neither resamples nor mixes."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from omni_cli.inputs.ogg import end_is_marked
from omni_cli.inputs.riff import sample_bytes
from omni_cli.inputs.sniff import AIFF, FLAC, MP3, OGG, WAV, Sniffed
from omni_cli.inputs.source import Source
from omni_cli.inputs.track import AudioTrack

_BLOCK_FRAMES = 65_536
# What libsndfile counts where the length is unknown.
_UNKNOWN_FRAMES = 2**62
_MP3_FRAME = 1152
_OGG_CODECS = (b"\x01vorbis", b"OpusHead", b"\x7fFLAC")


def reads(source: Source, sniffed: Sniffed) -> bool:
    """Whether libsndfile is the reader for this content."""
    if sniffed is OGG:
        return any(codec in source.data[:512] for codec in _OGG_CODECS)
    if sniffed is FLAC:  # one of unknown length, written to a pipe, libsndfile cannot read to its end
        return _flac_length(source.data) != 0
    return sniffed in (WAV, AIFF, MP3)


def open_track(source: Source, sniffed: Sniffed) -> AudioTrack:
    """Opens the header. Raises InputError where it is damaged, or declares more samples than there are."""
    notes: tuple[str, ...] = ()
    if sniffed in (WAV, AIFF):
        notes = _check_sample_chunk(source)
    elif sniffed is OGG:
        notes = _check_pages(source)
    try:
        file = soundfile.SoundFile(io.BytesIO(source.data))
    except (soundfile.SoundFileError, OSError, ValueError, TypeError) as error:
        raise source.refuse(f"cannot be decoded as {sniffed.title}: {_reason(error)}") from error
    frames = 0 if file.frames >= _UNKNOWN_FRAMES else int(file.frames)
    # An MP3 without a Xing, Info or VBRI frame declares no length; libsndfile then estimates it.
    exact = sniffed is not MP3 or any(tag in source.data[:8192] for tag in (b"Xing", b"Info", b"VBRI"))
    slack = 2 * _MP3_FRAME + frames // 100 if sniffed is MP3 else 0
    return AudioTrack(
        sample_rate_hz=int(file.samplerate),
        channels=int(file.channels),
        declared_frames=frames,
        least_frames=frames - slack if exact else 0,
        blocks=_blocks(file, source, sniffed),
        notes=notes,
    )


def _blocks(file: Any, source: Source, sniffed: Sniffed) -> Iterator[NDArray[np.float32]]:
    with file:
        while True:
            try:
                block: NDArray[np.float32] = file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)
            except (soundfile.SoundFileError, OSError, ValueError) as error:
                reason = f"is damaged or cut short: {_reason(error)}"
                raise source.refuse(f"cannot be decoded as {sniffed.title}: it {reason}") from error
            if not len(block):
                return
            yield block


def _check_sample_chunk(source: Source) -> tuple[str, ...]:
    found = sample_bytes(source.data)
    if found is None:
        return ()  # libsndfile says what is wrong with the header
    declared, present = found
    if declared is None:
        return ("its header leaves the length open: read to the end",)
    if declared > present:
        raise source.refuse(f"is cut short: its header declares {declared} bytes of samples, {present} are there")
    return ()


def _check_pages(source: Source) -> tuple[str, ...]:
    marked = end_is_marked(source.data)
    if marked is None:
        raise source.refuse("is cut short: it ends in the middle of an Ogg page")
    return () if marked else ("its last page is not marked as the last: it may be cut short",)


def _flac_length(data: bytes) -> int:
    """Total samples of STREAMINFO (RFC 9639, 8.2), 36 bits; 0 is unknown, -1 no such block."""
    start = data.find(b"fLaC")
    if start < 0 or len(data) < start + 26:
        return -1
    return int.from_bytes(data[start + 21 : start + 26], "big") & 0xF_FFFF_FFFF


def _reason(error: Exception) -> str:
    # error_string leaves out the address of the in-memory file that the full message starts with.
    return str(getattr(error, "error_string", None) or error or type(error).__name__)
