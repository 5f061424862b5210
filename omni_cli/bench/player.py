"""A player that starts on the first piece of sound and plays on as pieces come. Pure arithmetic over stamps."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Playback:
    """`underruns` times it ran dry, for `silence_s` in all. Started `prebuffer_s` later, it would not have."""

    underruns: int
    silence_s: float
    prebuffer_s: float


def play(pieces: Sequence[tuple[float, float]]) -> Playback:
    """`pieces` are (when it came, how long it plays) in seconds, in their order. Those without sound do not count."""
    underruns, silence_s, prebuffer_s = 0, 0.0, 0.0
    ends_s = heard_s = first_s = None
    for came_s, plays_s in pieces:
        if not plays_s:
            continue
        if ends_s is None or heard_s is None or first_s is None:
            first_s, heard_s, ends_s = came_s, 0.0, came_s
        if came_s > ends_s:
            underruns += 1
            silence_s += came_s - ends_s
            ends_s = came_s
        prebuffer_s = max(prebuffer_s, came_s - first_s - heard_s)
        heard_s += plays_s
        ends_s += plays_s
    return Playback(underruns=underruns, silence_s=silence_s, prebuffer_s=prebuffer_s)
