"""Encodes a waveform as a file in memory.

libsndfile does the encoding. A format that cannot hold the waveform's rate gets it resampled, with a warning.
"""

import io
import struct
from dataclasses import dataclass
from typing import Literal

import numpy as np
import soundfile
from numpy.typing import NDArray

from omni_cli.artifacts.encoded import Encoded
from omni_cli.artifacts.waveform import Waveform
from omni_cli.errors import ArtifactError

AudioFormat = Literal["wav", "wav_float", "flac", "opus", "vorbis", "mp3", "pcm"]


@dataclass(frozen=True, slots=True)
class _Encoding:
    container: str
    subtype: str
    extension: str
    media_type: str
    rates_hz: tuple[int, ...] = ()


_MP3_RATES_HZ = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_OPUS_RATES_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)
_ENCODINGS: dict[AudioFormat, _Encoding] = {
    "wav": _Encoding("WAV", "PCM_16", "wav", "audio/wav"),
    "wav_float": _Encoding("WAV", "FLOAT", "wav", "audio/wav"),
    "flac": _Encoding("FLAC", "PCM_16", "flac", "audio/flac"),
    "opus": _Encoding("OGG", "OPUS", "opus", "audio/ogg", _OPUS_RATES_HZ),
    "vorbis": _Encoding("OGG", "VORBIS", "ogg", "audio/ogg"),
    "mp3": _Encoding("MP3", "MPEG_LAYER_III", "mp3", "audio/mpeg", _MP3_RATES_HZ),
    "pcm": _Encoding("RAW", "PCM_16", "pcm", "audio/pcm"),
}


def to_pcm16(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    """Nearest 16-bit value of samples within [-1, 1], little endian; what came from int16 comes back unchanged."""
    words: NDArray[np.int16] = np.clip(np.rint(samples * np.float32(32768.0)), -32768, 32767).astype("<i2")
    return words


def encode(waveform: Waveform, audio_format: AudioFormat = "wav") -> Encoded:
    """Encodes a waveform that holds at least one sample.

    `wav` and `flac` are 16 bits, `wav_float` holds the float32 samples bit for bit, `pcm` is 16 bits little endian
    without a header. Raises ArtifactError, also for an empty waveform: there is no file of no sound.
    """
    encoding = _ENCODINGS.get(audio_format)
    if encoding is None:
        raise ArtifactError(f"audio format {audio_format!r} is not known; choose {', '.join(_ENCODINGS)}")
    if waveform.empty or waveform.rate_hz is None:
        raise ArtifactError(f"an empty waveform cannot be encoded as {audio_format}")
    samples, rate_hz, warnings = _at_a_rate_of(encoding, waveform, waveform.rate_hz, audio_format)
    if audio_format == "pcm":
        data = to_pcm16(samples).tobytes()
    else:
        data = _encode_file(samples, rate_hz, encoding, audio_format)
    return Encoded(
        data=data,
        extension=encoding.extension,
        media_type=encoding.media_type,
        rate_hz=rate_hz,
        frames=len(samples),
        duration_s=len(samples) / rate_hz,
        warnings=warnings,
    )


def _at_a_rate_of(
    encoding: _Encoding, waveform: Waveform, rate_hz: int, audio_format: AudioFormat
) -> tuple[NDArray[np.float32], int, tuple[str, ...]]:
    if not encoding.rates_hz or rate_hz in encoding.rates_hz:
        return waveform.samples, rate_hz, waveform.warnings
    import soxr

    target_hz = min((r for r in encoding.rates_hz if r > rate_hz), default=encoding.rates_hz[-1])
    resampled: NDArray[np.float32] = soxr.resample(waveform.samples, rate_hz, target_hz)
    if not len(resampled):
        raise ArtifactError(f"{len(waveform.samples)} samples at {rate_hz} Hz are too few for {audio_format}")
    warning = f"{audio_format} cannot hold {rate_hz} Hz: resampled to {target_hz} Hz"
    return np.clip(resampled, -1.0, 1.0), target_hz, (*waveform.warnings, warning)


def _encode_file(samples: NDArray[np.float32], rate_hz: int, encoding: _Encoding, audio_format: AudioFormat) -> bytes:
    file = io.BytesIO()
    values = to_pcm16(samples) if encoding.subtype == "PCM_16" else samples
    try:
        soundfile.write(file, values, rate_hz, format=encoding.container, subtype=encoding.subtype)
    except (soundfile.SoundFileError, ValueError, TypeError) as error:
        reason = getattr(error, "error_string", None) or error
        raise ArtifactError(f"{rate_hz} Hz mono cannot be encoded as {audio_format}: {reason}") from error
    data = file.getvalue()
    return _without_time(data) if encoding.subtype == "FLOAT" else data


def _without_time(data: bytes) -> bytes:
    """libsndfile stamps a float WAV with the time, in its PEAK chunk: the same samples must be the same bytes."""
    position = 12
    while position + 8 <= len(data):
        name, size = data[position : position + 4], struct.unpack_from("<I", data, position + 4)[0]
        if name == b"PEAK":
            return data[: position + 12] + bytes(4) + data[position + 16 :]
        position += 8 + size + size % 2
    return data
