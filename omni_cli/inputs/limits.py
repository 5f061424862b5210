"""What one piece of request media may cost: checked against headers first, and again while decoding.

The defaults are bounds for safety, not for quality: a model family may accept less, and says so itself.
"""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLimits:
    """Upper bounds per piece of media; what is over a bound is refused, never cut."""

    max_text_bytes: int = 16 * MIB
    """Size of a prompt file."""

    max_image_bytes: int = 64 * MIB
    """Size of an encoded image."""

    max_image_pixels: int = 64_000_000
    """Width x height of an image as its header declares it. Decoded it takes 3 bytes a pixel: 192 MB."""

    max_audio_bytes: int = 1024 * MIB
    """Size of an encoded recording."""

    max_audio_s: float = 2400.0
    """Length of a recording in seconds: 40 minutes, decoded 154 MB."""

    max_audio_channels: int = 64
    """Channels of a recording before they are mixed down."""

    max_video_bytes: int = 1024 * MIB
    """Size of an encoded video."""

    max_video_s: float = 600.0
    """Length of a video in seconds."""

    max_video_frames: int = 7200
    """Frames kept of a video (after `sample_fps`, where that is given)."""

    max_frame_pixels: int = 4096 * 2304
    """Width x height of one video frame."""

    max_video_pixels: int = 512_000_000
    """Pixels of all frames kept of a video together. Decoded they take 3 bytes each: 1.5 GB."""
