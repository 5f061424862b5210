"""The way in for request media: a path or bytes in; an image, a recording or a video out, or one InputError.

`label` is what messages call the media ("messages[0].content[2]"); without it a file is called by noun and
absolute path.
Content decides the format; file names and media types are never looked at.
"""

from omni_cli.inputs.limits import InputLimits
from omni_cli.inputs.media import Decoded
from omni_cli.inputs.sniff import ACCEPTED, Kind, Sniffed, sniff
from omni_cli.inputs.source import Media, Source, open_source


def decode(
    kind: Kind,
    media: Media,
    *,
    label: str | None = None,
    limits: InputLimits | None = None,
    sample_fps: float | None = None,
) -> Decoded:
    """Decodes an image (its first frame, over white), a recording or the sound track of a video, or a video.

    Of a video `sample_fps` keeps fewer frames a second, evenly spaced in time; without it every frame is kept. Raises
    InputError.
    """
    if sample_fps is not None and not sample_fps > 0:
        raise ValueError(f"sample_fps must be above 0, not {sample_fps}")
    limits = limits or InputLimits()
    most = {"image": limits.max_image_bytes, "audio": limits.max_audio_bytes, "video": limits.max_video_bytes}
    source = open_source(media, noun=kind, label=label, max_bytes=most[kind])
    sniffed = _recognise(source, kind)
    # each brings a library of its own
    if kind == "image":
        from omni_cli.inputs.image import decode_pixels

        return decode_pixels(source, sniffed, limits)
    if kind == "audio":
        from omni_cli.inputs.audio import decode_samples

        return decode_samples(source, sniffed, limits)
    from omni_cli.inputs.video import decode_frames

    return decode_frames(source, sniffed, limits, sample_fps)


def _recognise(source: Source, kind: Kind) -> Sniffed:
    found = sniff(source.data)
    if found is None:
        start = source.data[:8].hex(" ")
        raise source.refuse(f"is in no known format (it starts with {start}); give {ACCEPTED[kind]}")
    if kind not in found.kinds:
        advice = found.advice or f"give {ACCEPTED[kind]}"
        raise source.refuse(f"holds {found.title}, not {'an image' if kind == 'image' else kind}; {advice}")
    return found
