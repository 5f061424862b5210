"""The media of recipes/requests, tiny and drawn by rule: run as a module, it prints their data URLs."""

import base64
import io

import av
import numpy as np
import soundfile
from PIL import Image

SIDE = 128
RATE_HZ = 16_000


def picture() -> np.ndarray:
    """uint8 [128, 128, 3]: a red square on white, as large as nano-omni knows one without another size."""
    pixels = np.full((SIDE, SIDE, 3), 255, np.uint8)
    pixels[26:102, 26:102] = (230, 30, 30)
    return pixels


def tone() -> np.ndarray:
    """int16 [3200]: a fifth of a second of 440 Hz."""
    return np.round(8000 * np.sin(2 * np.pi * 440 * np.arange(RATE_HZ // 5) / RATE_HZ)).astype(np.int16)


def frames() -> list[np.ndarray]:
    """Four pictures, half a second each, on which the square moves to the right."""
    return [np.roll(picture(), 4 * n - 8, axis=1) for n in range(4)]


def data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def image_url() -> str:
    file = io.BytesIO()
    Image.fromarray(picture()).quantize(2).save(file, "PNG", optimize=True)
    return data_url("image/png", file.getvalue())


def audio_url() -> str:
    file = io.BytesIO()
    soundfile.write(file, tone(), RATE_HZ, format="FLAC", subtype="PCM_16")
    return data_url("audio/flac", file.getvalue())


def video_url() -> str:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=2, options={"crf": "30"})
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for pixels in frames():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return data_url("video/mp4", file.getvalue())


if __name__ == "__main__":
    for url in (image_url(), audio_url(), video_url()):
        print(url)
