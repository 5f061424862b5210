"""Turns a sound track into what speech encoders take: float32, one channel, 16 kHz.

Channels are averaged, then resampled by soxr at its high quality, block by block, so that the memory used is
that of the result. Levels are left as they are.
"""

import numpy as np
import soxr
from numpy.typing import NDArray

from omni_cli.inputs import container, sound_file
from omni_cli.inputs.limits import InputLimits
from omni_cli.inputs.media import Decoded
from omni_cli.inputs.sniff import Sniffed
from omni_cli.inputs.source import Source
from omni_cli.inputs.track import AudioTrack

SAMPLE_RATE_HZ = 16_000
_MIN_RATE_HZ = 1_000
_MAX_RATE_HZ = 1_000_000


def decode_samples(source: Source, sniffed: Sniffed, limits: InputLimits) -> Decoded:
    """Decodes the first sound track of what `sniffed` recognised. Raises InputError."""
    if sound_file.reads(source, sniffed):
        return _normalise(sound_file.open_track(source, sniffed), source, limits)
    with container.open_container(source, sniffed) as opened:
        return _normalise(container.open_audio_track(opened, source, sniffed), source, limits)


def _normalise(track: AudioTrack, source: Source, limits: InputLimits) -> Decoded:
    _check_header(track, source, limits)
    notes = list(track.notes)
    rate = track.sample_rate_hz
    samples, frames = _mono_16k(track, source, limits)
    if track.channels > 1:
        notes.append(f"mixed down from {track.channels} channels")
    if rate != SAMPLE_RATE_HZ:
        notes.append(f"resampled {rate} -> {SAMPLE_RATE_HZ} Hz")
    if not len(samples):
        raise source.refuse(f"holds {frames} samples at {rate} Hz, too short for one at {SAMPLE_RATE_HZ} Hz")
    if not np.isfinite(samples).all():
        raise source.refuse("holds samples too large to be sound")
    return source.decoded(samples, notes)


def _check_header(track: AudioTrack, source: Source, limits: InputLimits) -> None:
    if not _MIN_RATE_HZ <= track.sample_rate_hz <= _MAX_RATE_HZ:
        raise source.refuse(f"declares {track.sample_rate_hz} Hz; {_MIN_RATE_HZ} to {_MAX_RATE_HZ} Hz can be resampled")
    if not 1 <= track.channels <= limits.max_audio_channels:
        raise source.refuse(f"has {track.channels} channels; 1 to {limits.max_audio_channels} are accepted")
    declared_s = track.declared_frames / track.sample_rate_hz
    if declared_s > limits.max_audio_s:
        raise source.refuse(_too_long(declared_s, limits))


def _mono_16k(track: AudioTrack, source: Source, limits: InputLimits) -> tuple[NDArray[np.float32], int]:
    """Samples at 16 kHz, and how many frames the source had."""
    rate = track.sample_rate_hz
    resampler = None if rate == SAMPLE_RATE_HZ else soxr.ResampleStream(rate, SAMPLE_RATE_HZ, 1)
    parts: list[NDArray[np.float32]] = []
    frames = 0
    for block in track.blocks:
        with np.errstate(over="ignore", invalid="ignore"):  # found by the next line instead
            mono = block.mean(axis=1, dtype=np.float32)
        if not np.isfinite(mono).all():
            first = frames + int(np.flatnonzero(~np.isfinite(mono))[0])
            raise source.refuse(f"holds samples that are not finite numbers (at {first / rate:.3f} s)")
        frames += len(mono)
        if frames > limits.max_audio_s * rate:
            raise source.refuse(_too_long(frames / rate, limits))
        parts.append(mono if resampler is None else resampler.resample_chunk(mono))
    if not frames:
        raise source.refuse("holds no samples: there is a header and nothing after it")
    if frames < track.least_frames:
        raise source.refuse(f"is cut short: it declares {track.declared_frames} samples, {frames} are there")
    if resampler is not None:
        parts.append(resampler.resample_chunk(np.zeros(0, np.float32), last=True))
    return np.concatenate(parts), frames


def _too_long(seconds: float, limits: InputLimits) -> str:
    return f"is at least {seconds:.1f} s long, over the limit of {limits.max_audio_s:g} s: cut it into parts"
