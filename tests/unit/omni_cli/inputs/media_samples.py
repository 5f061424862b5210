"""Encoded media for the tests of this folder, made on the spot."""

import io
from typing import Any

import av
import numpy as np
import soundfile
from PIL import Image


def tone(seconds: float, rate: int, hz: float = 440.0, level: float = 0.5) -> np.ndarray:
    return (level * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def sound(samples: np.ndarray, rate: int, container: str = "WAV", subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=container, subtype=subtype)
    return file.getvalue()


def picture(image: Image.Image, container: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, container, **options)
    return file.getvalue()


def clip(
    container: str,
    codec: str | None,
    frames: np.ndarray | None = None,
    fps: int = 10,
    audio_codec: str | None = None,
    audio: np.ndarray | None = None,
    rate: int = 48_000,
    pixel_format: str = "yuv420p",
    options: dict[str, str] | None = None,
) -> bytes:
    """A container with moving pictures (T, H, W, 3), a mono sound track, or both."""
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=options or {}) as out:
        pictures = sounds = None
        if codec is not None:
            assert frames is not None
            pictures = out.add_stream(codec, rate=fps)
            pictures.height, pictures.width = frames.shape[1:3]
            pictures.pix_fmt = pixel_format
        if audio_codec is not None:
            sounds = out.add_stream(audio_codec, rate=rate)
            sounds.layout = "mono"
        if pictures is not None:
            for pixels in frames:
                out.mux(pictures.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            out.mux(pictures.encode(None))
        if sounds is not None:
            assert audio is not None
            frame = av.AudioFrame.from_ndarray(audio[None, :], format="fltp", layout="mono")
            frame.sample_rate = rate
            out.mux(sounds.encode(frame))
            out.mux(sounds.encode(None))
    return file.getvalue()


def peak_hz(samples: np.ndarray, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * rate / len(samples))
