"""Folder and file names for anything a caller calls a request: safe, deterministic, different for different ids."""

import hashlib
import re

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
# Names that a run folder may need for itself, and those that some file systems keep for devices.
_RESERVED = frozenset(
    {"logs", "log", "jobs", "stages", "plan", "trace", "manifest", "results", "con", "prn", "aux", "nul"}
    | {f"{device}{number}" for device in ("com", "lpt") for number in range(1, 10)}
)
_READABLE_CHARACTERS = 40
_HASH_CHARACTERS = 32


def safe_name(identifier: str) -> str:
    """A single path component of at most 73 characters from [A-Za-z0-9_~-], without a leading dash or dot.

    A plain identifier is its own name. Any other becomes what is readable of it, "~", and 128 bits of the SHA-256
    of its code points; no plain identifier holds "~", so the two kinds cannot meet.
    """
    if _PLAIN.fullmatch(identifier) and identifier.lower() not in _RESERVED:
        return identifier
    readable = _UNSAFE.sub("_", identifier)[:_READABLE_CHARACTERS].strip("_-") or "id"
    # A lone surrogate, which JSON can carry, has no UTF-8.
    digest = hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{readable}~{digest[:_HASH_CHARACTERS]}"
