"""Says how an Ogg stream ends: libsndfile plays a cut one without a word. It decodes nothing."""

_HEADER_BYTES = 27
_END_OF_STREAM = 0x04


def end_is_marked(data: bytes) -> bool | None:
    """Whether the last page is flagged as the last; None where it is cut.

    Walks the pages of `data` (RFC 3533, section 6); what follows the pages is ignored.
    """
    position = 0
    marked = False
    while data[position : position + 4] == b"OggS":
        segments_at = position + _HEADER_BYTES
        if segments_at > len(data):
            return None
        body_at = segments_at + data[segments_at - 1]
        end = body_at + sum(data[segments_at:body_at])
        if end > len(data):
            return None
        marked = bool(data[position + 5] & _END_OF_STREAM)
        position = end
    return marked
