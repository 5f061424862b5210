"""Encodes frames as an MP4 file in memory. PyAV is imported only when needed."""

import io
import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omni_cli.artifacts.encoded import Encoded
from omni_cli.errors import ArtifactError


def encode(
    frames: NDArray[Any], *, fps: float, quality: int = 18, metadata: Mapping[str, str] | None = None
) -> Encoded:
    """Encodes uint8 RGB (T, H, W, 3) as H.264 (4:2:0).

    `quality` is the constant rate factor of x264: 0 is lossless, 18 looks so, 51 is the worst. H.264 needs even sides:
    an odd one gets its last line doubled, with a warning. `metadata` is the file's comment, as JSON. Raises
    ArtifactError.
    """
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or 0 in frames.shape:
        raise ArtifactError(f"frames of {frames.dtype} {frames.shape} are no video; uint8 (T, H, W, 3) is needed")
    if not 0 < fps <= 1000:
        raise ArtifactError(f"{fps} frames a second are no frame rate")
    warnings: tuple[str, ...] = ()
    height, width = frames.shape[1:3]
    if height % 2 or width % 2:
        frames = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        warnings = (f"{width} x {height} pixels made even: {frames.shape[2]} x {frames.shape[1]}",)
    return Encoded(
        data=_mux(frames, Fraction(fps).limit_denominator(100_000), quality, metadata or {}),
        extension="mp4",
        media_type="video/mp4",
        width=frames.shape[2],
        height=frames.shape[1],
        frames=len(frames),
        fps=fps,
        duration_s=len(frames) / fps,
        warnings=warnings,
    )


def _mux(frames: NDArray[np.uint8], fps: Fraction, quality: int, metadata: Mapping[str, str]) -> bytes:
    try:
        import av
        import av.error
    except ImportError as error:
        raise ArtifactError("a video needs the package PyAV to be written: pip install av") from error
    file = io.BytesIO()
    try:
        with av.open(file, "w", format="mp4") as container:
            if metadata:
                container.metadata["comment"] = json.dumps(dict(metadata), ensure_ascii=False)
            pictures = container.add_stream("libx264", rate=fps, options={"crf": str(quality)})
            pictures.height, pictures.width = frames.shape[1:3]
            pictures.pix_fmt = "yuv420p"
            for pixels in frames:
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
                container.mux(pictures.encode(frame))
            container.mux(pictures.encode(None))
    except (av.error.FFmpegError, ValueError) as error:
        raise ArtifactError(f"the video cannot be encoded as MP4: {error}") from error
    return file.getvalue()
