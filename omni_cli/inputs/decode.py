"""The way in for request media: a path or bytes in; an image, a recording or a video out, or one InputError.

`label` is what messages call the media ("messages[0].content[2]"); without it a file is called by noun and
absolute path.
Content decides the format; file names and media types are never looked at.
"""

from omni_cli.inputs.limits import InputLimits
from omni_cli.inputs.media import DecodedAudio, DecodedImage, DecodedVideo
from omni_cli.inputs.sniff import ACCEPTED, Kind, Sniffed, sniff
from omni_cli.inputs.source import Media, Source, open_source


def decode_image(media: Media, *, label: str | None = None, limits: InputLimits | None = None) -> DecodedImage:
    """Decodes an image to uint8 RGB (H, W, 3), upright, first frame, over white. Raises InputError."""
    from omni_cli.inputs.image import decode_pixels

    limits = limits or InputLimits()
    source = open_source(media, noun="image", label=label, max_bytes=limits.max_image_bytes)
    return decode_pixels(source, _recognise(source, "image"), limits)


def decode_audio(media: Media, *, label: str | None = None, limits: InputLimits | None = None) -> DecodedAudio:
    """Decodes a recording, or the sound track of a video, to float32 mono 16 kHz. Raises InputError."""
    from omni_cli.inputs.audio import decode_samples

    limits = limits or InputLimits()
    source = open_source(media, noun="audio", label=label, max_bytes=limits.max_audio_bytes)
    return decode_samples(source, _recognise(source, "audio"), limits)


def decode_video(
    media: Media,
    *,
    label: str | None = None,
    limits: InputLimits | None = None,
    sample_fps: float | None = None,
) -> DecodedVideo:
    """Decodes a video to uint8 RGB (T, H, W, 3). Raises InputError.

    `sample_fps` keeps fewer frames a second, evenly spaced in time; without it every frame is kept.
    """
    from omni_cli.inputs.video import decode_frames

    if sample_fps is not None and not sample_fps > 0:
        raise ValueError(f"sample_fps must be above 0, not {sample_fps}")
    limits = limits or InputLimits()
    source = open_source(media, noun="video", label=label, max_bytes=limits.max_video_bytes)
    return decode_frames(source, _recognise(source, "video"), limits, sample_fps)


def _recognise(source: Source, kind: Kind) -> Sniffed:
    found = sniff(source.data)
    if found is None:
        start = source.data[:8].hex(" ")
        raise source.refuse(f"is in no known format (it starts with {start}); give {ACCEPTED[kind]}")
    if kind not in found.kinds:
        advice = found.advice or f"give {ACCEPTED[kind]}"
        raise source.refuse(f"holds {found.title}, not {_A[kind]}; {advice}")
    return found


_A: dict[Kind, str] = {"image": "an image", "audio": "audio", "video": "video"}
