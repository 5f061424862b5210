"""Says what bytes hold by their own signature, whatever a file name or a media type claims.

The set is closed on purpose: only formats listed here are ever handed to a decoder, each under its own name,
so that no decoder guesses: a playlist or a vector drawing could make it open other files. It decodes nothing.
"""

import codecs
from dataclasses import dataclass
from typing import Literal

Kind = Literal["image", "audio", "video"]

ACCEPTED: dict[Kind, str] = {
    "image": "PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF, JPEG 2000 or PPM",
    "audio": "WAV, FLAC, Ogg, MP3, AIFF, AAC, M4A/MP4 or WebM",
    "video": "MP4, MOV, WebM, MKV, AVI, MPEG-TS or GIF",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sniffed:
    """A recognised format. `decoder` is its name in the decoding library, "" where there is none."""

    title: str
    kinds: frozenset[Kind] = frozenset()
    decoder: str = ""
    advice: str = ""


def _format(title: str, decoder: str, *kinds: Kind) -> Sniffed:
    return Sniffed(title=title, decoder=decoder, kinds=frozenset(kinds))


def _refused(title: str, advice: str = "") -> Sniffed:
    return Sniffed(title=title, advice=advice)


WAV = _format("WAV", "WAV", "audio")
AIFF = _format("AIFF", "AIFF", "audio")
FLAC = _format("FLAC", "FLAC", "audio")
OGG = _format("Ogg", "OGG", "audio")
MP3 = _format("MP3", "MP3", "audio")
AAC = _format("AAC", "aac", "audio")
MP4 = _format("MP4", "mov", "audio", "video")
MATROSKA = _format("Matroska/WebM", "matroska", "audio", "video")
AVI = _format("AVI", "avi", "audio", "video")
MPEGTS = _format("MPEG-TS", "mpegts", "audio", "video")
GIF = _format("GIF", "gif", "image", "video")
WEBP = _format("WebP", "WEBP", "image")
AVIF = _format("AVIF", "AVIF", "image")
BMP = _format("BMP", "BMP", "image")
PPM = _format("PPM", "PPM", "image")

TEXT = _refused("plain text")
SVG = _refused("an SVG drawing", "it has no pixels of its own: export it to PNG")
HTML = _refused("an HTML page", "a failed download often ends so: fetch the media itself")
HEIC = _refused("a HEIC photo", "convert it to JPEG or PNG")
PLAYLIST = _refused("a playlist", "give the media itself, not a list that points to it")

_SIGNATURES: tuple[tuple[int, bytes, Sniffed], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", _format("PNG", "PNG", "image")),
    (0, b"\xff\xd8\xff", _format("JPEG", "JPEG", "image")),
    (0, b"GIF87a", GIF),
    (0, b"GIF89a", GIF),
    (0, b"II*\x00", _format("TIFF", "TIFF", "image")),
    (0, b"MM\x00*", _format("TIFF", "TIFF", "image")),
    (0, b"\x00\x00\x00\x0cjP  \r\n\x87\n", _format("JPEG 2000", "JPEG2000", "image")),
    (0, b"\xff\x4f\xff\x51", _format("JPEG 2000", "JPEG2000", "image")),
    (0, b"fLaC", FLAC),
    (0, b"OggS", OGG),
    (0, b"\x1a\x45\xdf\xa3", MATROSKA),
    (4, b"moov", MP4),
    (4, b"mdat", MP4),
    (4, b"wide", MP4),
    (0, b"%PDF-", _refused("a PDF document", "render the page to PNG")),
    (0, b"PK\x03\x04", _refused("a ZIP archive", "unpack it")),
    (0, b"\x1f\x8b", _refused("a gzip archive", "unpack it")),
    (0, b"#EXTM3U", PLAYLIST),
    (0, b"ffconcat", PLAYLIST),
)
_RIFF = {b"WAVE": WAV, b"WEBP": WEBP, b"AVI ": AVI}
_ISO_BRANDS = {b"avif": AVIF, b"avis": AVIF, b"heic": HEIC, b"heix": HEIC, b"hevc": HEIC}
_HEAD_BYTES = 4096
_TS_PACKET_BYTES = 188


def sniff(data: bytes) -> Sniffed | None:
    """The format of `data` (not empty); None where no signature matches."""
    head = data[:_HEAD_BYTES]
    if head.startswith(b"ID3"):
        return _sniff_after_id3(data)
    for offset, magic, found in _SIGNATURES:
        if head.startswith(magic, offset):
            return found
    return _sniff_container(head) or _sniff_loose(head) or _sniff_mpeg_audio(head) or _sniff_text(head)


def _sniff_after_id3(data: bytes) -> Sniffed:
    """What follows an ID3v2 tag (id3.org, section 3.1: four size bytes of 7 bits each): AAC, FLAC or MP3."""
    size = 0
    for byte in data[6:10]:
        size = size << 7 | byte & 0x7F
    rest = data[10 + size : 10 + size + 16]
    if rest.startswith(b"fLaC"):
        return FLAC
    return AAC if _sniff_mpeg_audio(rest) is AAC else MP3


def _sniff_container(head: bytes) -> Sniffed | None:
    if head[:4] in (b"RIFF", b"RF64", b"BW64"):
        return _RIFF.get(head[8:12])
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return AIFF
    if head[4:8] == b"ftyp":
        if head[8:12] == b"mif1":  # any still image: the compatible brands say which
            return AVIF if b"avif" in head[16:64] else HEIC
        return _ISO_BRANDS.get(head[8:12], MP4)
    return None


def _sniff_loose(head: bytes) -> Sniffed | None:
    """Formats whose magic is only a byte or two: their fixed fields are checked as well."""
    if head[:2] == b"BM" and head[6:10] == b"\0\0\0\0":
        return BMP
    if head[:1] == b"P" and head[1:2] in b"123456" and head[2:3].isspace() and head[3:4].isdigit():
        return PPM
    if head[:1] == b"G" and head[_TS_PACKET_BYTES : _TS_PACKET_BYTES + 1] == b"G" and not _is_text(head):
        return MPEGTS
    return None


def _sniff_mpeg_audio(head: bytes) -> Sniffed | None:
    """An MPEG audio frame (ISO 11172-3, 2.4.2.3) or an ADTS one (ISO 13818-7, 6.2), by the layer bits."""
    if len(head) < 4 or head[0] != 0xFF:
        return None
    if head[1] & 0xF6 == 0xF0:
        return AAC
    layer = head[1] >> 1 & 3  # 1 is layer III, 2 is layer II
    if head[1] & 0xE0 == 0xE0 and layer in (1, 2) and head[2] >> 4 != 15 and head[2] >> 2 & 3 != 3:
        return MP3
    return None


def _sniff_text(head: bytes) -> Sniffed | None:
    if not _is_text(head):
        return None
    lowered = head.lower()
    if b"<svg" in lowered:
        return SVG
    if lowered.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"<!doctype html", b"<html")):
        return HTML
    return TEXT


def _is_text(head: bytes) -> bool:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    try:
        # Not final: the head may end in the middle of a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return all(character >= " " or character in "\t\n\r\f\x1b" for character in text)
