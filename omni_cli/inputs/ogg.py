"""Says how an Ogg stream ends: libsndfile plays a cut one without a word. It decodes nothing."""

from dataclasses import dataclass

_HEADER_BYTES = 27
_END_OF_STREAM = 0x04


@dataclass(frozen=True, slots=True, kw_only=True)
class OggEnd:
    """`whole` is False where the last page is cut; `marked` says whether it is flagged as the last."""

    whole: bool
    marked: bool


def find_end(data: bytes) -> OggEnd:
    """Walks the pages of `data` (RFC 3533, section 6) up to the last; what follows the pages is ignored."""
    position = 0
    marked = False
    while data[position : position + 4] == b"OggS":
        segments_at = position + _HEADER_BYTES
        if segments_at > len(data):
            return OggEnd(whole=False, marked=False)
        body_at = segments_at + data[segments_at - 1]
        end = body_at + sum(data[segments_at:body_at])
        if end > len(data):
            return OggEnd(whole=False, marked=False)
        marked = bool(data[position + 5] & _END_OF_STREAM)
        position = end
    return OggEnd(whole=True, marked=marked)
